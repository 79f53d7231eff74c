# Names that more than one rule needs. Everything else lives in the library.
from kvaudit.source import source_files

NAME = config["name"]
RUN = config["results"] or f"results/{NAME}"
LOGS = f"logs/{NAME}"
THREADS = config["profile"]["n_threads"]


wildcard_constraints:
    model="[a-z0-9][a-z0-9.-]*",


localrules:
    all,
