"""Queries over tables in memory, for the example `real_programs`: `analytics.py duckdb|arrow ROWS`.

Prints one line: `<name> <value>` pairs, the seconds of each query first.
"""

import ctypes
import resource
import sys
import time

ROWS = int(sys.argv[2])


def duckdb_queries():
    import duckdb

    database = duckdb.connect()
    database.execute("set threads = 2")
    database.execute(
        f"create table sales as select i as id, (i * 7919) % 100000 as customer, (i * 104729) % 1000 as item,"
        f" (i % 997) / 7.0 as price from range({ROWS}) r(i)"
    )
    database.execute(
        "create table customers as select i as customer, 'customer ' || i as name, i % 50 as region"
        " from range(100000) r(i)"
    )

    def query(text):
        return lambda: database.execute(text).fetchall()

    queries = [
        ("group", query("select item, sum(price), count(*) from sales group by item")),
        (
            "join",
            query(
                "select region, sum(price) from sales join customers using (customer) group by region order by 2"
            ),
        ),
        ("distinct", query("select count(*) from (select customer, item, sum(price) from sales group by all)")),
        ("sort", query(f"select id from sales order by price, customer limit 10 offset {ROWS // 4}")),
        (
            "text",
            query("select count(distinct name || item) from sales join customers using (customer) where id % 4 = 0"),
        ),
    ]
    return database, queries


def arrow_queries():
    import numpy
    import pyarrow
    from pyarrow import compute

    # The pool of memory that calls `malloc`; the default one is an allocator within the library.
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    pyarrow.set_cpu_count(2)
    ids = numpy.arange(ROWS, dtype=numpy.int64)
    sales = pyarrow.table(
        {"customer": ids * 7919 % 100000, "item": ids * 104729 % 1000, "price": ids % 997 / 7.0}
    )
    customers = pyarrow.table({"customer": numpy.arange(100000), "region": numpy.arange(100000) % 50})
    queries = [
        ("group", lambda: sales.group_by("item").aggregate([("price", "sum"), ("price", "count")])),
        ("join", lambda: sales.join(customers, "customer").group_by("region").aggregate([("price", "sum")])),
        ("distinct", lambda: sales.group_by(["customer", "item"]).aggregate([("price", "sum")])),
        ("sort", lambda: sales.slice(0, ROWS // 4).sort_by([("price", "ascending"), ("customer", "ascending")])),
        ("filter", lambda: sales.filter(compute.greater(sales["price"], 70.0))),
    ]
    return sales, queries


def main():
    kept, queries = {"duckdb": duckdb_queries, "arrow": arrow_queries}[sys.argv[1]]()
    results = []
    for name, run in queries:
        run()  # brings the tables and the code into memory
        start = time.perf_counter()
        for _ in range(2):
            run()
        results.append((name, (time.perf_counter() - start) / 2))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    results.append(("cpu", usage.ru_utime + usage.ru_stime))
    results.append(("faults", usage.ru_minflt))
    results.append(("resident", usage.ru_maxrss / 1024))
    print(*(f"{name} {value:.4f}" for name, value in results), flush=True)
    assert kept is not None
    ctypes.CDLL(None).exit(0)  # while the tables are in memory, so that the report of the library counts them


main()
