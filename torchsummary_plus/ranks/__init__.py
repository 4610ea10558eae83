"""One rank of many: a distributed model's step under a fake process group.

``record`` builds the model and runs its steps in a ``process_group``, on ``kernels``. ``stand_ins`` answer for what is
missing. What shards a model: ``wrappers``, ``pipelines``. ``compat`` has torch's private names.
"""
