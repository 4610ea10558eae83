"""Plain data: frozen records, units, errors, and what files from others hold. No torch."""
