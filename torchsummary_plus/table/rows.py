"""Trace -> rows and totals, the data of a summary. No torch, no text."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from operator import attrgetter

from ..data.memory_records import RowMemory
from ..data.records import (
    Adapter,
    Call,
    Experts,
    Flow,
    LayerSpec,
    ModuleSpec,
    ParameterSpec,
    Run,
    Structure,
    Trace,
    Unregistered,
    tensors,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A call of a module or function, a container around calls, or a module that is never called.

    ``num_params`` counts the elements of its own parameters that no other row counts, so the rows of a summary add up
    to its total; ``total_params`` includes all rows below. Likewise ``mult_adds`` includes the rows below and
    ``own_mult_adds`` does not. For a module never called, ``user`` is the row whose own operators read its parameters.
    """

    index: int
    parent: int | None
    depth: int
    path: str
    var_name: str
    class_name: str
    kind: str
    called: bool
    finished: int | None
    inputs: Structure
    outputs: Structure
    num_params: int
    trainable_params: int
    total_params: int
    repeated: bool
    own_mult_adds: int
    mult_adds: int
    own_unknown_ops: tuple[tuple[str, int], ...]
    unknown_ops: tuple[tuple[str, int], ...]
    output_bytes: int
    kernel_size: tuple[int, ...] | None = None
    groups: int | None = None
    dtype: str | None = None
    user: int | None = None
    is_container: bool = False
    layer: LayerSpec | None = None
    active_params: int = 0
    """The part of ``num_params`` that a token uses: for experts, the selected share, rounded."""
    param_bytes: int = 0
    """The stored bytes of ``num_params``."""
    unregistered_params: int = 0
    """The elements that ``num_params`` leaves out, because ``model.parameters()`` does not list them."""
    uninitialised_params: int = 0
    """How many parameters, rather than elements, have no shape yet; ``num_params`` does not count them."""
    tied: str | None = None
    """If all parameters are another module's, which counts them: its name, "" for the model itself."""


@dataclass(frozen=True)
class Report:
    """All numbers of a summary, as plain data; sizes are in bytes."""

    rows: tuple[Row, ...]
    inputs: Structure
    total_params: int
    trainable_params: int
    total_mult_adds: int
    unknown_ops: tuple[tuple[str, int], ...]
    input_bytes: int
    forward_backward_bytes: int
    param_bytes: int
    buffer_bytes: int
    run: Run
    row_memory: tuple[RowMemory, ...] = ()
    """Each row's memory, if it was asked for."""
    flow: Flow | None = None
    """Which row produced each tensor that a row reads; the steps' owners are rows. None if nothing ran."""
    experts: tuple[Experts, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    unregistered: tuple[Unregistered, ...] = ()
    """The attributes that hold layers outside ``model.parameters()``, which no total counts."""
    pruned_params: int | None = None
    """How many elements of ``total_params`` pruning masks set to zero; None without a mask whose values are known."""
    uninitialised_params: int = 0
    """How many parameters, rather than elements, have no shape yet; ``total_params`` does not count them."""
    uninitialised_buffers: int = 0
    """How many buffers have no shape yet; ``buffer_bytes`` does not count them."""

    @property
    def active_params(self) -> int:
        """The parameters that a token uses: all of them but experts that its router does not choose."""
        return self.total_params - sum(group.params - group.active_params for group in self.experts)

    @property
    def non_trainable_params(self) -> int:
        """Frozen parameters: those that do not require gradients."""
        return self.total_params - self.trainable_params

    @property
    def is_sharded(self) -> bool:
        """Whether one rank's part of the parameters is known."""
        return bool(self.row_memory) and any(memory.shards for memory in self.row_memory)

    @property
    def has_memory(self) -> bool:
        """Whether the memory of a step is known, and not only the shards of the parameters."""
        if not self.row_memory:
            return False
        return not self.is_sharded or any(memory.peak_bytes is not None for memory in self.row_memory)

    @property
    def total_bytes(self) -> int:
        """The sum of input, forward/backward pass and parameters, as in torchsummary; buffers are not included."""
        return self.input_bytes + self.forward_backward_bytes + self.param_bytes


def build_report(trace: Trace) -> Report:
    """Build the rows and totals of a trace."""
    nodes = _grow(trace)
    counted, buffers = _count_parameters(nodes)
    rows, flow = _rows(nodes, trace.experts), trace.flow
    row_of: dict[int, int] = {}
    for node in nodes:
        node.children.clear()  # Parents and children refer to each other: now they are freed without the collector.
        if node.call is not None:
            row_of[node.call.index] = node.index
    if flow is not None:  # It was between calls: now it is between rows.
        flow = replace(flow, owners=tuple(map(row_of.get, flow.owners, flow.owners)))
    pruned = [parameter.pruned for parameter in counted if parameter.pruned is not None]
    param_storages = dict([storage for parameter in counted for storage in parameter.storages])
    buffer_storages = dict([storage for buffer in buffers for storage in buffer.storages])
    return Report(
        rows=rows,
        inputs=trace.inputs,
        total_params=rows[0].total_params,
        trainable_params=sum([parameter.numel for parameter in counted if parameter.trainable]),
        total_mult_adds=rows[0].mult_adds,
        unknown_ops=rows[0].unknown_ops,
        input_bytes=sum([spec.nbytes for spec in tensors(trace.inputs)]),
        forward_backward_bytes=2 * sum([row.output_bytes for row in flat_rows(rows) if row.called]),
        param_bytes=sum(param_storages.values()),
        buffer_bytes=sum([nbytes for key, nbytes in buffer_storages.items() if key not in param_storages]),
        run=trace.run,
        flow=flow,
        experts=trace.experts,
        adapters=trace.adapters,
        unregistered=_unregistered(trace.modules),
        pruned_params=sum(pruned) if pruned else None,
        uninitialised_params=sum([parameter.is_uninitialised for parameter in counted]),
        uninitialised_buffers=len({buffer.key for buffer in buffers if buffer.is_uninitialised}),
    )


def _unregistered(modules: Sequence[ModuleSpec]) -> tuple[Unregistered, ...]:
    """Return the attributes that hold parameters or buffers outside the registry."""
    holders: list[str] = []
    params: dict[str, dict[int, int]] = {}
    for module in modules:
        holder = ""
        if not module.registered and module.parent is not None:
            holder = holders[module.parent] or _attribute(modules[module.parent], module.name)
        holders.append(holder)
        for specs, is_counted in ((module.parameters, True), (module.buffers, False)):
            for spec in specs:
                if not spec.registered:
                    numel = spec.numel if is_counted else 0
                    params.setdefault(holder or _attribute(module, spec.name), {})[spec.key] = numel
    return tuple([Unregistered(path, sum(sizes.values())) for path, sizes in params.items()] if params else ())


def _attribute(module: ModuleSpec, name: str) -> str:
    """Return the path of the attribute in which a module holds something by this name, such as "layers.0"."""
    return ".".join(filter(None, (module.path, name.partition(".")[0])))


def row_memory(
    trace: Trace, rows: tuple[Row, ...], calls: Sequence[tuple[str, RowMemory]], modules: Mapping[str, RowMemory]
) -> tuple[RowMemory, ...]:
    """Return each row's memory, from that of a step's ``calls`` and that of its ``modules`` outside calls, by path.

    The n-th call of a module in the step is its n-th call in the trace. A module's own memory goes to its first row.
    """
    upcoming_by_path: dict[str | None, deque[RowMemory]] = defaultdict(deque)
    for path, memory in calls:
        upcoming_by_path[path].append(memory)
    called = iter(None if call.module is None else trace.modules[call.module].path for call in trace.calls)
    counted: set[str | None] = set()
    memories = []
    for row in rows:
        own_path = next(called) if row.called else row.path
        upcoming = upcoming_by_path[own_path] if row.called else None
        memory = upcoming.popleft() if upcoming else RowMemory()
        if own_path is not None and own_path not in counted:
            own = modules.get(own_path, RowMemory())
            memory = replace(memory + own, shards=own.shards)
        counted.add(own_path)
        memories.append(memory)
    return tuple(memories)


@dataclass(eq=False)
class _Node:
    """A row under construction."""

    kind: str
    module: ModuleSpec | None
    call: Call | None
    parent: _Node | None
    path: str
    children: list[_Node] = field(default_factory=list)
    counted: list[ParameterSpec] = field(default_factory=list)
    unregistered: list[ParameterSpec] = field(default_factory=list)
    first: bool = True
    user: _Node | None = None
    index: int = -1
    depth: int = 0
    num_params: int = 0
    """The elements of ``counted``."""
    total_params: int = 0
    mult_adds: int = 0
    unknown: Counter[str] | None = None
    """The totals of its row and of those below."""


def _grow(trace: Trace) -> list[_Node]:
    """Return the tree of rows in pre-order: calls, the uncalled containers around them, and modules never called."""
    known: dict[int, _Node] = {}
    by_path = {module.path: module for module in trace.modules if module.registered}
    calls: list[_Node] = []
    for call in trace.calls:
        called = None if call.module is None else trace.modules[call.module]
        above = None if call.parent is None else calls[call.parent]
        if above is not None and called is not None:
            above = _through_containers(call.path, above, by_path, known)
        node = _Node("function" if called is None else "module", called, call, above, call.path)
        calls.append(node)
        _attach(node, known)
    for module in trace.modules:
        if module.index not in known and (module.registered or module.parent is None):
            above = None if module.parent is None else known[module.parent]
            _attach(_Node("module", module, None, above, module.path), known)
    nodes: list[_Node] = []
    stack = [known[0]]
    while stack:
        node = stack.pop()
        node.index = len(nodes)
        node.depth = 0 if node.parent is None else node.parent.depth + 1
        nodes.append(node)
        stack.extend(reversed(node.children))
    return nodes


def _attach(node: _Node, known: dict[int, _Node]) -> None:
    if node.parent is not None:
        node.parent.children.append(node)
    if node.module is not None:
        node.first = node.module.index not in known
        known.setdefault(node.module.index, node)


def _through_containers(path: str, above: _Node, by_path: dict[str, ModuleSpec], known: dict[int, _Node]) -> _Node:
    """Return the innermost container between a caller and its callee, adding a row unless it is still the last one."""
    prefix = above.path + "." if above.path else ""
    if not path.startswith(prefix):
        return above
    here = above
    steps = path[len(prefix) :].split(".")[:-1]
    for count in range(1, len(steps) + 1):
        module = by_path.get(prefix + ".".join(steps[:count]))
        if module is None:
            continue
        last = here.children[-1] if here.children else None
        if last is not None and last.kind == "container" and last.module is module:
            here = last
        else:
            here = _Node("container", module, None, here, module.path)
            _attach(here, known)
    return here


def _count_parameters(nodes: list[_Node]) -> tuple[list[ParameterSpec], list[ParameterSpec]]:
    """Assign each distinct parameter to the first call of a module that owns it, else to the first row of one.

    The ``user`` of a module never called is the first row whose operators read its parameters. Return the registered
    parameters, in the order of rows, and buffers.
    """
    keys: set[int] = set()
    called = [(node.call, node) for node in nodes if node.call is not None]
    uncalled = [node for node in nodes if node.call is None]
    readers = {key: node for call, node in reversed(called) for key in call.used}
    in_order = [node for _, node in sorted(called, key=lambda pair: pair[0].index)]
    for node in in_order + uncalled:
        for parameter in node.module.parameters if node.module is not None else ():
            if parameter.key not in keys:
                keys.add(parameter.key)
                (node.counted if parameter.registered else node.unregistered).append(parameter)
                node.num_params += parameter.numel if parameter.registered else 0
    for node in uncalled:
        node.user = next(filter(None, [readers.get(parameter.key) for parameter in node.counted]), None)
    first = [node.module for node in nodes if node.module is not None and node.first]
    buffers = [buffer for module in first for buffer in module.buffers if buffer.registered]
    return [parameter for node in nodes for parameter in node.counted], buffers


def _rows(nodes: list[_Node], experts: Sequence[Experts]) -> tuple[Row, ...]:
    owners: dict[int, str] = {}
    for node in nodes:
        node.total_params = node.num_params
        if node.call is not None:
            node.mult_adds = node.call.macs
            node.unknown = Counter(dict(node.call.unknown_ops)) if node.call.unknown_ops else None
        for parameter in node.counted:
            owners[parameter.key] = node.path
    for node in reversed(nodes):
        if node.parent is not None:
            node.parent.total_params += node.total_params
            node.parent.mult_adds += node.mult_adds
            if node.unknown:
                node.parent.unknown = (node.parent.unknown or Counter()) + node.unknown
    shares = {key: Fraction(group.chosen, group.count) for group in experts for key in group.keys}
    storages: set[int] = set()
    return tuple([_row(node, shares, owners, storages) for node in nodes])


def _row(node: _Node, shares: Mapping[int, Fraction], owners: Mapping[int, str], storages: set[int]) -> Row:
    """Return a node's row, given the share of experts' parameters that a token uses, and each parameter's path.

    ``storages`` are those that rows above count, to which its own are added.
    """
    module, call = node.module, node.call
    trainable, param_bytes, uninitialised, unregistered, with_shared = 0, 0, 0, 0, 0
    active: int | Fraction = 0
    for p in node.counted:
        trainable += p.numel if p.trainable else 0
        uninitialised += p.is_uninitialised
        active += p.numel * shares.get(p.key, 1)
        for number, nbytes in p.storages:
            param_bytes += 0 if number in storages else nbytes
            storages.add(number)
    for p in node.unregistered:
        unregistered += p.numel
        uninitialised += p.is_uninitialised
    others = []
    for p in module.parameters if module is not None else ():
        with_shared += p.numel
        if p.key in owners:
            others.append(owners[p.key])
    repeated = with_shared > 0 and node.num_params == unregistered == 0
    outputs, output_bytes, dtype = call.outputs if call is not None else None, 0, None
    for spec in tensors(outputs):
        output_bytes += spec.nbytes
        dtype = dtype or spec.dtype
    return Row(
        index=node.index,
        parent=None if node.parent is None else node.parent.index,
        depth=node.depth,
        path=node.path,
        var_name=node.path.rpartition(".")[2] if module is not None else "",
        class_name=module.class_name if module is not None else (call.name if call is not None else ""),
        kind=node.kind,
        called=call is not None,
        finished=None if call is None else call.finished,
        inputs=None if call is None else call.inputs,
        outputs=outputs,
        num_params=node.num_params,
        trainable_params=trainable,
        total_params=node.total_params,
        repeated=repeated,
        own_mult_adds=0 if call is None else call.macs,
        mult_adds=node.mult_adds,
        own_unknown_ops=() if call is None else call.unknown_ops,
        unknown_ops=tuple(sorted(node.unknown.items())) if node.unknown else (),
        output_bytes=output_bytes,
        kernel_size=module.kernel_size if module is not None else None,
        groups=module.groups if module is not None else None,
        dtype=dtype,
        user=None if node.user is None else node.user.index,
        is_container=module is not None and module.is_container,
        layer=module.layer if module is not None else None,
        active_params=round(active),
        param_bytes=param_bytes,
        unregistered_params=unregistered,
        uninitialised_params=uninitialised,
        tied=others[0].rpartition(".")[2] if repeated and others and node.path not in others else None,
    )


def flat_rows(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return the rows of torchsummary's table in the order the calls finish; modules never called come last.

    Containers and the root are left out unless they count parameters or there are no other rows.
    """
    users = set(map(attrgetter("user"), rows))
    chosen = []
    for row in rows:
        has_params = row.num_params + row.unregistered_params + row.uninitialised_params > 0
        if not row.called:
            has_row = has_params and row.user is None
        else:
            has_row = not (row.is_container or row.index == 0) or has_params or row.index in users
        if has_row:
            chosen.append(row)
    return tuple(sorted(chosen or rows[:1], key=when_finished))


def when_finished(row: Row) -> tuple[bool, int]:
    """Return the key by which rows are sorted in the order the calls finish, those never called last."""
    return (True, row.index) if row.finished is None else (False, row.finished)


def is_tree(rows: Sequence[Row]) -> bool:
    """Return whether rows are a tree in pre-order, as their parents and depths say."""
    around: list[int | None] = [None]
    for place, row in enumerate(rows):
        is_below = bool(place) <= row.depth < len(around) and row.parent == around[row.depth]
        if row.index != place or not is_below:
            return False
        around[row.depth + 1 :] = [place]
    return True
