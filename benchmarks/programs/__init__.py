"""Random programs, and the judge of an estimate of one."""
