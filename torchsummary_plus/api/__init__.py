"""The public calls: they check their arguments and return results.

- Tables: ``table``, ``configured``, ``weights``, ``compare``, ``explain``.
- Memory and time: ``memory``, and ``step_request``, which its calls share. While a program runs: ``tracker``,
  ``loops``.
- For all calls: ``public`` (interrupts, errors, progress, showing), ``other_tools`` (arguments known from other tools).
  ``cli`` is the shell command.
"""
