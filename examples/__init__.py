"""Models that tests, notebooks and the README share: each file is one readable model, in plain torch."""
