"""The rows of past questions on the terminal: going back erases answers that were taken back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from trainwiz.wizard.terminal import size


@dataclass(kw_only=True)
class Trail:
    """Where on the terminal each question began, in rows from the first one."""

    talked: Callable[[], int] = lambda: 0
    """Rows that were printed so far beside the questions; grows."""
    erase: Callable[[int], None] = lambda _: None
    """Erases so many rows above the cursor."""
    _asked: int = 0
    """Rows of answered questions that are still there."""
    _began: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The row of each question, and the columns of the terminal then."""

    def begin(self, step: str) -> None:
        """A question is asked below all that is there."""
        self._began[step] = (self._end, size().columns)

    def answered(self, rows: int) -> None:
        """A question left so many rows."""
        self._asked += rows

    def back_to(self, step: str) -> None:
        """Erase a question that is asked again, with all below it; nothing on a terminal whose width has changed."""
        row, columns = self._began.get(step, (self._end, 0))
        if row < self._end and columns == size().columns:
            self.erase(self._end - row)
            self._asked -= self._end - row

    @property
    def _end(self) -> int:
        return self._asked + self.talked()
