"""The totals below a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ..data.records import Unregistered
from ..data.units import mebibytes
from ..formats.table import Cell, Field, Total
from .rows import Report

COUNTS = {
    "total_params": "Total params",
    "trainable_params": "Trainable params",
    "non_trainable_params": "Non-trainable params",
    "total_mult_adds": "Total mult-adds",
}
"""The fields of a report that are counts, with their labels."""

SIZES = {
    "input_bytes": "Input size",
    "forward_backward_bytes": "Forward/backward pass size",
    "param_bytes": "Params size",
    "buffer_bytes": "Buffers size",
    "total_bytes": "Estimated Total Size",
}
"""The fields of a report in bytes, with their labels."""

COUNT_FIELDS = [
    Field(name, label, "mult-adds" if name == "total_mult_adds" else "elements") for name, label in COUNTS.items()
]

SIZE_FIELDS = [Field(name, label, "bytes", scaled=True) for name, label in SIZES.items()]

MOST_NAMES = 5
"""Most attributes that a note names."""

GUESSES = ("forward_backward_bytes", "total_bytes")
"""torchsummary's guesses at a step's memory: unknown unless the whole forward ran, and left out where it is known."""


def report_totals(report: Report) -> tuple[Total, ...]:
    """Return a report's totals in table order."""
    totals = []
    for field in COUNT_FIELDS:
        if field.unit == "mult-adds":
            cell = Cell(None if report.run.kind == "none" else report.total_mult_adds, _mult_adds(report))
        else:
            cell = _elements(report, getattr(report, field.name))
        totals.append(Total(field, cell))
        if field.name == "non_trainable_params":
            totals += _chosen(report)
    for field in SIZE_FIELDS:
        nbytes = None if _is_unknown(report, field.name) else getattr(report, field.name)
        totals.append(Total(field, Cell(nbytes, "N/A" if nbytes is None else mebibytes(nbytes))))
    return tuple(totals)


def unregistered_note(unregistered: Sequence[Unregistered]) -> str:
    """Return the note that the totals leave out layers which no module registers; "" without any."""
    if not unregistered:
        return ""
    params = sum(item.params for item in unregistered)
    names = ", ".join(item.path for item in unregistered[:MOST_NAMES])
    more = f" and {len(unregistered) - MOST_NAMES:,} more" if len(unregistered) > MOST_NAMES else ""
    what = f"{params:,} parameters in {names}" if params else names  # Buffers, or lazy layers.
    return (
        f"Not registered, outside the totals: {what}{more}; .to(), state_dict() and optimizers "
        "miss layers in a plain list, dict or attribute: use nn.ModuleList, nn.ModuleDict or nn.ParameterList"
    )


def _is_unknown(report: Report, size: str) -> bool:
    """Whether a size depends on a pass that did not run, or on tensors that have no shape yet."""
    unknown = {
        "param_bytes": report.uninitialised_params,
        "buffer_bytes": report.uninitialised_buffers,
        "total_bytes": report.uninitialised_params,
    }
    if size == "input_bytes":
        return report.run.kind == "none"
    return bool(unknown.get(size)) or (size in GUESSES and (report.run.kind == "none" or report.run.is_partial))


def _elements(report: Report, count: int) -> Cell:
    """Return the cell of a number of elements: a lower bound, or unknown, if parameters have no shape yet."""
    if not report.uninitialised_params:
        return Cell(count, f"{count:,}")
    return Cell(count, f">={count:,}") if count else Cell(None, "N/A")


def without_shape(report: Report) -> str:
    """Return how many parameters have no shape yet, and the cure; "" if all have one."""
    count = report.uninitialised_params
    if not count:
        return ""
    parameters = "1 parameter" if count == 1 else f"{count:,} parameters"
    cure = "pass input_size= or input_data=" if report.run.kind == "none" else "the forward does not use them"
    return f"{parameters} of lazy modules without a shape; {cure}"


def _mult_adds(report: Report) -> str:
    if report.run.kind == "none":
        return "N/A"
    if not report.unknown_ops:
        return f"{report.total_mult_adds:,}"
    names = ", ".join(f"{name} x {count:,}" for name, count in report.unknown_ops)
    return f">={report.total_mult_adds:,} (not counted: {names})"


def _chosen(report: Report) -> Iterator[Total]:
    """Yield the parameters left by pruning, those that a token uses, if there are experts, and each adapter's own."""
    if report.pruned_params is not None:
        left = report.total_params - report.pruned_params
        text = f"{left:,} ({report.pruned_params:,} are masked)"
        yield Total(Field("params_after_pruning", "Params after pruning", "elements"), Cell(left, text))
    if report.experts:
        count = report.active_params
        ways = Counter((group.chosen, group.count) for group in report.experts)
        shares = ", ".join(f"{chosen:,} of {number:,} experts" for chosen, number in ways)
        yield Total(Field("active_params", "Active params", "elements"), Cell(count, f"{count:,} ({shares} per token)"))
    for adapter in report.adapters:
        share = 100 * adapter.trainable_params / report.total_params
        text = f"{adapter.params:,} params, {adapter.trainable_params:,} trained ({share:.2f}% of all)"
        if not adapter.is_active:
            text += ", inactive"
        field = Field(f"adapter_{adapter.name}", f"Adapter {adapter.name}", "elements")
        yield Total(field, Cell(adapter.params, text))
