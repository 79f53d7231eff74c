# Names that more than one rule needs. Everything else lives in the library.
from pathlib import Path

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


def build_sources(wildcards):
    """The files of this checkout that decide what a build of the engine holds."""
    found = [
        Path("envs/engine_variant.py"),
        Path("envs/engine.txt"),
        Path("envs/build.txt"),
    ]
    if wildcards.variant.startswith("portable"):
        found += Path("envs/portable").iterdir()
        found += [
            Path(f"envs/portable_{part}.py") for part in ("engine", "gate", "math")
        ]
    return sorted(map(str, found))


wildcard_constraints:
    model="[a-z0-9][a-z0-9.-]*",


localrules:
    all,
