"""The benchmark: `python -m kvgraft.bench`. Every figure is a ratio of times taken in one run.

`work` says what is measured, `ours` and `rivals` and `server` measure it, each in processes of its
own (`children`), `report` turns raw timings into figures and tables. `splits` is the measurement
behind the choice of the default profile. Nothing else of the library knows of this package.
"""
