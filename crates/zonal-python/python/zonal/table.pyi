from collections.abc import Sequence
from typing import Any

__all__ = ["Table"]

class Table:
    """Named columns of equal length.

    Any library that reads the Arrow C stream interface can read a table: ``pyarrow.table(table)``,
    ``polars.DataFrame(table)``, ``pandas.DataFrame.from_arrow(table)``.
    """

    def __init__(self, columns: Sequence[tuple[str, str, Sequence[Any]]]) -> None:
        """Creates a table from the name, the type and the values of each column. Raises ValueError for an unknown
        type, and for columns that have the same name or different lengths."""

    @property
    def names(self) -> list[str]:
        """The names of the columns, in order."""
    @property
    def types(self) -> list[str]:
        """The types of the columns: int64, uint64, float64, string or bool."""
    @property
    def num_rows(self) -> int:
        """The number of rows."""
    def __len__(self) -> int: ...
    def __getitem__(self, name: str) -> list[Any]: ...
    def column(self, name: str) -> list[Any]:
        """Returns the values of a column; rows without a value have None. Raises KeyError for an unknown name."""
    def to_dicts(self) -> list[dict[str, Any]]:
        """Returns one dictionary for each row, from names of columns to values."""
    @staticmethod
    def concat(tables: Sequence[Table]) -> Table:
        """Returns the rows of all tables, in order. Rows of tables that lack a column have None in it."""
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...
