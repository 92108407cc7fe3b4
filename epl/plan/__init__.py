"""The plan of a step, in rooms by topic. `plan.py` makes it; tests/unit/test_imports.py has which room may use which.

- `facts`: what the operations of a model are and do
- `cost`, `precision`, `input`: what operations cost, which compute in 16 bits, how data is divided
- `layout`: the mesh of devices, stages, owners, placements
- `sync`: what copies of the model merge
- `memory`, `pipeline`: recomputation and offload; stages and micro-batches
- `zero`: state, gradients and parameters that devices divide among themselves
- `exchange`: what devices exchange in a step, and in which order
- `report`: tables and pages
"""
