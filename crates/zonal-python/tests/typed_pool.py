"""A program whose types are checked by `mypy --strict`, and which runs as a test."""

import zonal


class Cache:
    def __init__(self) -> None:
        self.buffers: list[zonal.Buffer] = []

    def count(self, request: zonal.ReclaimRequest) -> int:
        return sum(buffer.pages for buffer in self.buffers)

    def reclaim(self, request: zonal.ReclaimRequest) -> int:
        return self.buffers.pop().pages if self.buffers and request.pages > 0 else 0


def main() -> int:
    cache = Cache()
    with zonal.Pool("32M", fake_nodes=2, settings={"min_free_kbytes": 512}) as pool:
        with pool.register_reclaimer(cache), pool.on_pressure(lambda event: print(event["kind"])):
            cache.buffers.append(pool.alloc("64k", policy=pool.interleave(), zeroed=True))
        view = memoryview(cache.buffers[0])
        view[0] = 1
        view.release()
        where: int | None = cache.buffers[0].placement().misplaced
        pool.settings["min_free_kbytes"] = 1024
        assert where is None or where >= 0
        try:
            pool.alloc("1G")
        except zonal.OutOfMemory as error:
            print(error)
        zones: list[int] = [row["node"] for row in pool.zones().to_dicts()]
        return len(zones)


if __name__ == "__main__":
    assert main() == 2
