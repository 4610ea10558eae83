"""The calls: arguments checked at the border, results returned."""
