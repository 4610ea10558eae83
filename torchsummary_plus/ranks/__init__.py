"""One rank of many: the step of a distributed model under a fake process group."""
