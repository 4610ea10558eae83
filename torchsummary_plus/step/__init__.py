"""A training or inference step: its phases, run on fakes or for real, and the ledger of its memory."""
