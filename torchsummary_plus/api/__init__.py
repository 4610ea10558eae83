"""The public calls: they check their arguments and return results.

- Tables: ``table``, ``configured``, ``weights``, ``sharded``, ``compare``, ``graph``, ``explain``.
- Memory: ``memory``, ``generation``, ``what_if``, ``step_options`` and ``step_request``, which these calls share,
  ``memory_columns``. Time: ``time``.
- While a program runs: ``tracker``, ``loops``.
- For all calls: ``public`` (interrupts and errors), ``habits`` (arguments known from other tools), ``notebook``,
  ``progress``. ``cli/`` is the shell command.
"""
