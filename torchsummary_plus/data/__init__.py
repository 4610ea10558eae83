"""Plain data: frozen records, units, errors and their JSON. No torch."""
