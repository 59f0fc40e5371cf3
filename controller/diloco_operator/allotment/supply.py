"""The slices that one allotment can still give, counted by class, and who has got how many of each.

Units with equal requirements are interchangeable, and so are slices of one class. So augmenting paths (Kuhn, Berge) run over requirements
and classes, however many units and slices there are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from diloco_operator.allotment.classes import SliceClass

type SliceDemand = tuple[int, Hashable]
"""The number of requirements, and for units of several slices the domain in which the unit stays; None for one slice."""


@dataclass(slots=True, eq=False)
class _Stock:
    class_: SliceClass
    free: int
    left: int
    """Free ones, those that units are leaving, and those that units must leave now."""


class Supply:
    """Mutable inside one call of `allot`."""

    def __init__(self, classes: Iterable[SliceClass]) -> None:
        self._stocks = {class_: _Stock(class_, len(class_.free), len(class_.free) + len(class_.leaving)) for class_ in classes}
        self._order = sorted(self._stocks, key=lambda class_: class_.rank)
        self._fitting: dict[SliceDemand, list[_Stock]] = {}
        self._open: dict[SliceDemand, list[_Stock]] = {}
        """Of these, stocks that may have something left."""
        self.given: dict[SliceDemand, dict[_Stock, int]] = {}
        self._takers: dict[_Stock, dict[SliceDemand, None]] = {}
        self._exhausted: dict[SliceDemand, frozenset[SliceClass]] = {}
        """Demands that found no path, each with the classes that it could reach."""

    # --- what there is -------------------------------------------------------------------------------------------------
    def domains(self, number: int, slots: int) -> Sequence[Hashable]:
        """The domains in which a unit with these requirements may be: first those that have enough slices left, of them the one with the
        fewest, so that what is large stays large."""
        left: dict[Hashable, int] = {}
        for class_ in self._order:
            if number in class_.domains:
                domain = class_.domains[number]
                left[domain] = left.get(domain, 0) + self._stocks[class_].left
        return sorted(left, key=lambda domain: (left[domain] < slots, left[domain] if left[domain] >= slots else -left[domain]))

    def reach(self, demand: SliceDemand) -> frozenset[SliceClass]:
        """Classes of which one more slice would help a demand that `take` has just refused."""
        return self._exhausted.get(demand, frozenset())

    # --- give and take -------------------------------------------------------------------------------------------------
    def take(self, demand: SliceDemand, slots: int) -> bool:
        """Give so many slices, or none. Others that have got slices may get other ones instead."""
        if demand in self._exhausted:
            return False
        for done in range(slots):
            if not self.take_one(demand):
                for _ in range(done):
                    self._put_back(demand)
                return False
        return True

    def add(self, class_: SliceClass) -> None:
        """One more slice of this class will be free, as the unit on it must leave."""
        self._stocks[class_].left += 1
        self._open.clear()
        self._exhausted = {demand: reached for demand, reached in self._exhausted.items() if class_ not in reached}

    def withdraw(self, class_: SliceClass, *, leaving: bool) -> bool:
        """Take one slice of this class out of the supply, a free one or one that units are leaving. False: all have been given."""
        stock = self._stocks.get(class_)
        if stock is None:  # no applicant can use it
            return True
        if (stock.left if leaving else min(stock.free, stock.left)) <= 0:
            return False
        stock.left -= 1
        stock.free = min(stock.free - (not leaving), stock.left)
        return True

    def snapshot(self) -> Callable[[], None]:
        """A function that restores the present state."""
        counts = [(stock, stock.free, stock.left) for stock in self._stocks.values()]
        given = {demand: dict(stocks) for demand, stocks in self.given.items()}
        takers = {stock: dict(demands) for stock, demands in self._takers.items()}
        exhausted = dict(self._exhausted)

        def restore() -> None:
            for stock, free, left in counts:
                stock.free, stock.left = free, left
            self.given, self._takers, self._exhausted = given, takers, exhausted
            self._open.clear()

        return restore

    def _put_back(self, demand: SliceDemand) -> None:
        stock = next(iter(self.given[demand]))
        self._count(demand, stock, -1)
        stock.left += 1
        stock.free = min(stock.free + 1, len(stock.class_.free))
        self._open.clear()

    def _stocks_for(self, demand: SliceDemand) -> list[_Stock]:
        found = self._fitting.get(demand)
        if found is None:
            number, domain = demand
            found = [
                self._stocks[class_]
                for class_ in self._order
                if class_.mask >> number & 1 and (domain is None or class_.domains[number] == domain)
            ]
            self._fitting[demand] = found
        return found

    def take_one(self, demand: SliceDemand) -> bool:
        """Directly, or along a shortest path on which each takes a slice of the next and the last takes one that is left."""
        if (left := self._left(demand)) is not None:
            self._give(demand, left)
            return True
        before: dict[SliceDemand, tuple[SliceDemand, _Stock]] = {}
        queue = [demand]
        reached: set[_Stock] = set()
        for here in queue:
            for stock in self._stocks_for(here):
                if stock in reached:
                    continue
                reached.add(stock)
                for other in self._takers.get(stock, ()):
                    if other in before or other == demand:
                        continue
                    before[other] = (here, stock)
                    if (left := self._left(other)) is not None:
                        self._shift(before, demand, other, left)
                        return True
                    queue.append(other)
        self._exhausted[demand] = frozenset(stock.class_ for stock in reached)
        return False

    def _left(self, demand: SliceDemand) -> _Stock | None:
        """A stock that fits and has something left, one with free slices if there is any."""
        stocks = self._open.get(demand)
        if stocks is None:
            self._open[demand] = stocks = [stock for stock in self._stocks_for(demand) if stock.left]
        while stocks and not stocks[0].left:
            del stocks[0]
        for stock in stocks:
            if stock.free > 0:
                return stock
        return next((stock for stock in stocks if stock.left), None)

    def _give(self, demand: SliceDemand, stock: _Stock) -> None:
        stock.left -= 1
        stock.free -= stock.free > 0
        self._count(demand, stock, 1)

    def _shift(self, before: dict[SliceDemand, tuple[SliceDemand, _Stock]], start: SliceDemand, end: SliceDemand, left: _Stock) -> None:
        """The last demand of a path takes what is left, and each other one what the next had."""
        self._give(end, left)
        while end != start:
            here, stock = before[end]
            self._count(end, stock, -1)
            self._count(here, stock, 1)
            end = here

    def _count(self, demand: SliceDemand, stock: _Stock, change: int) -> None:
        given = self.given.setdefault(demand, {})
        given[stock] = given.get(stock, 0) + change
        if given[stock]:
            self._takers.setdefault(stock, {})[demand] = None
        else:
            del given[stock]
            del self._takers[stock][demand]
