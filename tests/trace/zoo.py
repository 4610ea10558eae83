"""The zoo: every kind of model that `summary` supports, with a small builder each.

``ZOO`` maps a case's name to its `Case`. `zoo_values` varies what goes into modules and comes out of
them, the others what modules are made of and how they are called.
"""

from tests.trace import zoo_calls, zoo_decisions, zoo_parameters, zoo_values  # noqa: F401 - importing them fills ZOO
from tests.trace.zoo_case import ZOO, Case, ready

__all__ = ["ZOO", "Case", "ready"]
