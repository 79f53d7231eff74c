# Names that more than one rule needs. Everything else lives in the library.
from kvaudit.source import source_files
from kvaudit.stagekinds import KINDS

NAME = f"registered/{REGISTERED.label}" if REGISTERED else config["name"]
RUN = config["results"] or f"results/{NAME}"
LOGS = f"logs/{NAME}"
PLOTS = f"plots/{NAME}"
DRAWN = any(KINDS[stage].draw for stage in config["stages"])
THREADS = config["profile"]["n_threads"]
# The build that the profile asks for; none where it is the installed one.
ENGINE = (
    ["work/engines/portable.txt"] if config["profile"]["preset"] == "portable" else []
)


wildcard_constraints:
    model="[a-z0-9][a-z0-9.-]*",


localrules:
    all,
