"""A laboratory in small: a git repository, keys, registrations, and runs that belong to them."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import synthetic
from repositories import git

from kvaudit import canonical, digests, history, manifest, prereg
from kvaudit.attest import keys
from kvaudit.prereg import draft, filing
from kvaudit.prereg.registration import Registration

MODELS = ("tiny-a", "tiny-b")
ENGINE = "0.3.36"
EARLY = "2026-01-01T00:00:00Z"
CRITERION = {
    "id": "E1",
    "claim": "every graft is exact",
    "expression": "exactness/tiny-a: samples.exact == samples.n and splits.equal == splits.n",
}
PREDICTION = {
    "id": "P1",
    "claim": "the control differs clearly",
    "quantity": "exactness/tiny-a: splits.control_kl_max",
    "direction": "above",
    "baseline": "0",
    "interval": [0.0000001, 1],
}


def commit(repository: Path) -> None:
    git(repository, "add", "-A", "-f")
    git(repository, "commit", "-q", "-m", "change")


@dataclass(frozen=True)
class World:
    """The folder `root` is the repository; `key` lies beside it."""

    root: Path
    key: Path

    @property
    def folder(self) -> Path:
        return self.root / prereg.FOLDER

    @property
    def public(self) -> keys.PublicKey:
        return keys.load_public(f"{self.key}.pub")

    def signer(self) -> list[keys.PrivateKey]:
        return [keys.load_private(self.key)]

    def draft(self, name: str = "first", **changes: Any) -> Path:
        """A draft that is filled in; `changes` replace its fields."""
        config = draft.configuration([self.root / "config/whole.json"], self.root)
        value = draft.new(
            name,
            config,
            self.root,
            datasets=["workflow/data.jsonl"],
            device="none",
            driver="none",
        )
        value |= {
            "criteria": [CRITERION],
            "predictions": [PREDICTION],
            "stopping_rule": "one run",
            "exclusions": [],
        }
        value["target"]["engine"]["build"] = f"llama-cpp-python {ENGINE}"
        value |= changes
        return draft.write(self.root.parent, value)

    def file(self, name: str = "first", filed: str = EARLY, **changes: Any) -> Registration:
        path = self.draft(name, **changes)
        found = filing.file(
            path, self.signer(), folder=self.folder, repository=self.root, filed=filed
        )
        path.unlink()
        return found

    def run(
        self,
        found: Registration,
        folder: Path,
        *,
        change: Callable[[dict[str, Any]], None] = lambda _: None,
        seed: str | None = None,
    ) -> Path:
        """A run of a registration, consistent in itself; `change` is applied to its inputs."""
        config = {**found.configuration(), **({} if seed is None else {"seed": seed})}
        facts: dict[str, Any] = {
            "configuration": config,
            "source": history.source_facts(self.root),
            "registration": found.reference(),
            "models": synthetic.inputs(MODELS)["models"],
            "environment": {
                "python": platform.python_version(),
                "platform": "synthetic",
                "packages": {"llama-cpp-python": ENGINE},
                "locks": {"envs/audit.txt": digests.sha256_file(self.root / "envs/audit.txt")},
            },
            "created": manifest.now(),
        }
        change(facts)
        config = facts["configuration"]
        names = tuple(config["models"])
        before, synthetic.SEED = synthetic.SEED, config["seed"]
        try:
            folder.mkdir(parents=True)
            models = facts.pop("models")
            inputs = synthetic.inputs(names, configuration_name=config["name"], **facts)
            inputs["models"] = [model for model in models if model["name"] in names]
            manifest.write(folder / manifest.INPUTS, inputs)
            for model in names:
                synthetic.write_stage(folder, model, *synthetic.rows_of(model))
                now = manifest.now()
                synthetic.close(folder, model, started=now, ended=now)
            manifest.close_run(folder)
        finally:
            synthetic.SEED = before
        return folder


def build(root: Path) -> World:
    """A repository with one commit whose models are the synthetic ones."""
    repository = root / "repository"
    config = {
        "name": "synthetic",
        "models": list(MODELS),
        "stages": ["exactness"],
        "profile": {"preset": "split-invariant", "n_ctx": 2048, "n_batch": 2048},
        "exactness": synthetic.SECTION,
    }
    pins = {
        "kind": "model-pins",
        "version": 1,
        "models": [
            {
                "name": model["name"],
                "sha256": model["sha256"],
                "bytes": model["bytes"],
                "licence": "none",
                "source": {"path": "none"},
            }
            for model in synthetic.inputs(MODELS)["models"]
        ],
    }
    files: Mapping[str, str] = {
        "Snakefile": "rule all:\n",
        "workflow/code.py": "x = 1\n",
        "workflow/data.jsonl": "{}\n",
        "config/whole.json": json.dumps(config),
        "envs/audit.txt": "numpy==2\n",
        "manifests/pins/models.json": json.dumps(pins),
        "README.md": "text\n",
    }
    for name, text in files.items():
        path = repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(repository, "init", "-q")
    commit(repository)
    key = root / "signer.pem"
    keys.generate(key)
    return World(repository, key)


def relabel(run: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Changes what a run says of its inputs, and makes every digest above follow."""

    def inputs(value: dict[str, Any]) -> None:
        change(value)
        value["source"]["tree_sha256"] = digests.tree_digest(value["source"]["files"])
        config = value["configuration"]
        config["sha256"] = digests.sha256_json(config["value"])

    rewrite(run / manifest.INPUTS, inputs)
    known = manifest.registered(manifest.read(run / manifest.INPUTS, "inputs"))

    def used(value: dict[str, Any]) -> None:
        value["inputs_used"] = {name: known[name] for name in value["inputs_used"]}

    for path in run.glob(f"*/*/{manifest.STAGE}"):
        rewrite(path, used)
    synthetic.reseal(run)
    return run


def copy(world: World, to: Path) -> World:
    """A copy of the repository and its registrations, to be attacked."""
    shutil.copytree(world.root.parent, to, dirs_exist_ok=True)
    return World(to / world.root.name, to / world.key.name)


def rewrite(path: Path, change: Callable[[Any], None]) -> None:
    """Changes a JSON document and leaves it canonical."""
    value = json.loads(path.read_bytes())
    change(value)
    path.write_bytes(canonical.dumps(value) + b"\n")
