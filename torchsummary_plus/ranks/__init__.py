"""One rank of many: a distributed model's step under a fake process group."""
