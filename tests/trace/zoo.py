"""The zoo: every kind of model that `summary` promises to read, one small builder each.

``ZOO`` maps a case's name to its `Case`. `zoo_values` varies what goes into modules and comes out of them,
`zoo_modules` what modules are made of and how they are called.
"""

from tests.trace import zoo_modules, zoo_values  # noqa: F401  (importing them fills ZOO)
from tests.trace.zoo_case import ZOO, Case

__all__ = ["ZOO", "Case"]
