"""Planning: how often machines fail, what that costs, and which strategy, standbys and checkpoints to choose.

- `setting`, `failures`, `strategy`: what is modelled;
- `inputs/`: a user's answers, incident logs and measured runs become a setting;
- `closed_form`: time to train by formulas; `simulation/`, `simgrid/`: by simulation;
- `planner`: the best strategy; `report/`: a page about it;
- `papers/`: published tables, reproduced.
"""
