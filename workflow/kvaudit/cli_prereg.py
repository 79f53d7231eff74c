"""The commands `kvaudit prereg …`: draft, file, stamp, judge and close a registration."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvaudit.cli_common import add_command, emit, pretty, send_request_text
from kvaudit.cli_keys import add_key, add_root, private_keys
from kvaudit.errors import printable
from kvaudit.prereg import FOLDER, RESULTS

if TYPE_CHECKING:
    from kvaudit.prereg.ledger import Entry, Ledger, Trust

_CODES = "  2  unusable input, or it comes too late\n  3  something named is not there\n"
_BROKEN = "  1  a registration or the chain was changed\n"


def add_commands(commands: Any) -> None:
    """Adds the commands to what `add_subparsers` returned."""
    prereg = add_command(
        commands,
        "prereg",
        "say what a run is to show before it is made, and judge it afterwards",
        "example:\n  kvaudit prereg new --config config/paper.yaml --name first --into .\n"
        "  kvaudit prereg file first.draft.json --key signer.pem\n"
        "  snakemake --cores all --config registration=1\n"
        "  kvaudit prereg adjudicate 1 results/registered/0001-first --key signer.pem\n",
        lambda options: 2,
    )
    own = prereg.add_subparsers(metavar="WHAT", required=True)
    _add_drafting(own)
    _add_stamping(own)
    _add_ending(own)
    status = _add(
        own,
        "status",
        "list all registrations, what hangs, and what was changed",
        "kvaudit prereg status --key signer.pem.pub",
        "  0  the chain is sound; registrations may be open\n" + _BROKEN + _CODES,
        _status,
    )
    status.add_argument(
        "--key",
        metavar="PUB",
        action="append",
        default=[],
        help="a public key that is trusted; repeatable, and one of them must have signed",
    )
    add_root(status)
    status.add_argument(
        "--results",
        metavar="FOLDER",
        help="where runs are looked for whose registration is missing (default: "
        f"{RESULTS}, where --registrations is its default too)",
    )
    status.add_argument("--json", action="store_true", help="print as JSON")


def _add_drafting(own: Any) -> None:
    new = _add(
        own,
        "new",
        "write a draft from a configuration and the source tree",
        "kvaudit prereg new --config config/smoke.yaml --name first --into .",
        "  0  written\n" + _CODES,
        _new,
        registrations=False,
    )
    new.add_argument(
        "--config",
        metavar="FILE",
        nargs="+",
        required=True,
        help="one JSON file, or YAML files laid over config/default.yaml",
    )
    new.add_argument("--name", metavar="NAME", required=True, help="of the registration")
    new.add_argument("--into", metavar="DIR", default=".", help="where the draft goes (default: .)")
    new.add_argument(
        "--dataset",
        metavar="PATH",
        action="append",
        default=[],
        help="a file of the source tree that holds data; repeatable",
    )
    new.add_argument("--device", metavar="TEXT", default="", help="on which the run is to be made")
    new.add_argument("--driver", metavar="TEXT", default="", help="of the device")
    _add_repository(new)

    file = _add(
        own,
        "file",
        "number, chain and sign a draft that is filled in",
        "kvaudit prereg file first.draft.json --key signer.pem",
        "  0  filed\n" + _BROKEN + _CODES,
        _file,
    )
    file.add_argument("draft", metavar="DRAFT", help="NAME.draft.json")
    add_key(file, required=True)
    _add_repository(file)


def _add_stamping(own: Any) -> None:
    stamp = add_command(
        own,
        "timestamp",
        "ask for an RFC 3161 time stamp, and take the reply; both are files",
        "example:\n  kvaudit prereg timestamp request 1\n"
        "  kvaudit prereg timestamp accept 1 reply.tsr --root tsa-root.pem\n",
        lambda options: 2,
    )
    kinds = stamp.add_subparsers(metavar="WHAT", required=True)
    request = _add(
        kinds,
        "request",
        "write timestamp.tsq, which is sent to an authority",
        "kvaudit prereg timestamp request 1",
        "  0  written\n" + _BROKEN + _CODES,
        _request,
    )
    _add_number(request)
    accept = _add(
        kinds,
        "accept",
        "check a reply against root certificates and add it as timestamp.tsr",
        "kvaudit prereg timestamp accept 1 reply.tsr --root tsa-root.pem",
        "  0  accepted\n" + _BROKEN + _CODES,
        _accept,
    )
    _add_number(accept)
    accept.add_argument("reply", metavar="FILE.tsr", help="what the authority sent")
    add_root(accept, required=True)
    _add_results(accept)


def _add_ending(own: Any) -> None:
    judge = _add(
        own,
        "adjudicate",
        "give every criterion and prediction of a registration its verdict on a run",
        "kvaudit prereg adjudicate 1 results/registered/0001-first --key signer.pem",
        "  0  judged; criteria may have failed\n"
        "  1  the run is refused, or the chain was changed, or --check finds another outcome\n"
        + _CODES,
        _adjudicate,
    )
    _add_number(judge)
    judge.add_argument("run", metavar="RUN", help="the run's folder")
    judge.add_argument(
        "--allow-missing",
        action="store_true",
        help="judge a run that lacks whole stages; what reads them is `not run`",
    )
    judge.add_argument(
        "--check", action="store_true", help="compare with the outcome that lies there already"
    )
    judge.add_argument("--json", action="store_true", help="print the outcome as JSON")
    add_key(judge)
    _add_results(judge)

    amend = _add(
        own,
        "amend",
        "close a registration that has no result yet, and draft its successor",
        'kvaudit prereg amend 1 --reason "the driver was withdrawn" --key signer.pem',
        "  0  closed and drafted\n" + _BROKEN + _CODES,
        _amend,
    )
    _add_number(amend)
    amend.add_argument("--reason", metavar="TEXT", required=True, help="why")
    amend.add_argument(
        "--into", metavar="DIR", default=".", help="where the new draft goes (default: .)"
    )
    add_key(amend)
    _add_results(amend)
    _add_repository(amend)

    abandon = _add(
        own,
        "abandon",
        "close a registration without a verdict",
        'kvaudit prereg abandon 1 --reason "the machine was never available" --key signer.pem',
        "  0  closed\n" + _BROKEN + _CODES,
        _abandon,
    )
    _add_number(abandon)
    abandon.add_argument("--reason", metavar="TEXT", required=True, help="why")
    add_key(abandon)
    _add_results(abandon)


def _add(
    commands: Any,
    name: str,
    summary: str,
    example: str,
    codes: str,
    function: Callable[[argparse.Namespace], int],
    *,
    registrations: bool = True,
) -> argparse.ArgumentParser:
    epilog = f"example:\n  {example}\n\nexit codes:\n{codes}"
    parser = add_command(commands, name, summary, epilog, function)
    if registrations:
        parser.add_argument(
            "--into" if name == "file" else "--registrations",
            dest="registrations",
            metavar="FOLDER",
            default=FOLDER,
            help=f"of the registrations (default: {FOLDER})",
        )
    return parser


def _add_number(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", metavar="NNNN", type=int, help="the registration's number")


def _add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results",
        metavar="FOLDER",
        default=RESULTS,
        help=f"where runs of the registration are looked for (default: {RESULTS})",
    )


def _add_repository(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repository", metavar="REPO", default=".", help="the source tree (default: .)"
    )


def _new(options: argparse.Namespace) -> int:
    from kvaudit.prereg import draft

    value = draft.new(
        options.name,
        draft.configuration(options.config, options.repository),
        options.repository,
        datasets=options.dataset,
        device=options.device,
        driver=options.driver,
    )
    path = draft.write(options.into, value)
    emit(
        f"{printable(path)}: fill in criteria, predictions, target, stopping_rule, exclusions\n"
        f"then: kvaudit prereg file {printable(path)} --key FILE\n"
    )
    return 0


def _file(options: argparse.Namespace) -> int:
    from kvaudit.prereg import filing

    found = filing.file(
        options.draft,
        private_keys(options),
        folder=options.registrations,
        repository=options.repository,
    )
    emit(
        f"{printable(found.folder)}: filed and signed\n"
        f"digest  {found.sha256}\nseed    {found.seed}\n"
        f"time stamp (optional, before the run): kvaudit prereg timestamp request "
        f"{found.number}\n"
        f"run it: snakemake --cores all --config registration={found.number}\n"
    )
    return 0


def _request(options: argparse.Namespace) -> int:
    from kvaudit.prereg import filing

    path = filing.request_token(options.registrations, options.number)
    emit(send_request_text(str(path), f"prereg timestamp accept {options.number}"))
    return 0


def _accept(options: argparse.Namespace) -> int:
    from kvaudit import timestamp
    from kvaudit.prereg import closing, filing, ledger
    from kvaudit.safefs import read_file

    stamp = filing.accept_token(
        options.registrations,
        options.number,
        read_file(options.reply, timestamp.MAX_BYTES),
        ledger.Trust(roots=timestamp.load_roots(options.root)),
        where=options.reply,
        runs=closing.known_runs(options.results, options.number),
    )
    emit(f"accepted: the registration existed no later than {stamp.text}\n")
    return 0


def _adjudicate(options: argparse.Namespace) -> int:
    from kvaudit.prereg import adjudicate, closing, filing, ledger
    from kvaudit.prereg.errors import RegistrationChanged, RegistrationInvalid

    keys = private_keys(options)
    if options.check:
        chain = ledger.read(options.registrations)
        chain.require_sound()
        entry = chain.entry(options.number)
        if entry.state != "adjudicated":
            raise RegistrationInvalid("there is no verdict to check", found=entry.state)
    else:
        filing.recover(options.registrations)
        entry = filing.open_registration(options.registrations, options.number, what="a verdict")
    known = closing.known_runs(options.results, options.number)
    if options.check:
        outcome, parted = adjudicate.check(
            entry, options.run, allow_missing=options.allow_missing, known=known
        )
        if parted:
            raise RegistrationChanged(
                "the outcome is not what this run gives",
                where=f"{entry.label}/outcome.json: {parted[0].field}",
                expected=parted[0].given,
                found=parted[0].filed,
                hint=f"{len(parted)} fields differ" if len(parted) > 1 else None,
            )
    else:
        outcome = adjudicate.adjudicate(entry, options.run, allow_missing=options.allow_missing)
        outcome["runs"] = sorted({*known, *outcome["runs"]})
        assert entry.registration is not None
        closing.close(options.registrations, entry.registration, outcome, keys)
    said = _verdicts(entry, outcome)
    if options.check and outcome["run"]["rerun_reason"] is not None:
        said += "not confirmed by programs here, but what the records give: the filed outcome\n"
    emit(pretty(outcome) if options.json else said)
    return 0


def _amend(options: argparse.Namespace) -> int:
    from kvaudit.prereg import closing

    outcome, draft = closing.amend(
        options.registrations,
        options.number,
        options.reason,
        into=options.into,
        repository=options.repository,
        keys=private_keys(options),
        results=options.results,
    )
    emit(f"{printable(outcome)}: amended\n{printable(draft)}: the draft that takes its place\n")
    return 0


def _abandon(options: argparse.Namespace) -> int:
    from kvaudit.prereg import closing

    path = closing.abandon(
        options.registrations,
        options.number,
        options.reason,
        keys=private_keys(options),
        results=options.results,
    )
    emit(f"{printable(path)}: abandoned\n")
    return 0


def _status(options: argparse.Namespace) -> int:
    from kvaudit.prereg import closing, ledger

    chain = ledger.read(options.registrations, _trust(options))
    results = options.results
    if results is None and options.registrations == FOLDER:
        results = RESULTS
    if results is not None:
        chain = replace(chain, findings=(*chain.findings, *closing.strays(results, chain)))
    if options.json:
        emit(
            pretty(
                {
                    "registrations": [_facts(entry) for entry in chain.entries],
                    "findings": [vars(finding) for finding in chain.all_findings],
                }
            )
        )
    else:
        emit(_list(chain))
    return chain.exit_code


def _trust(options: argparse.Namespace) -> Trust:
    from kvaudit import timestamp
    from kvaudit.attest import keys
    from kvaudit.prereg import ledger

    return ledger.Trust(
        keys=tuple(keys.load_public(path) for path in options.key),
        roots=timestamp.load_roots(options.root),
    )


def _facts(entry: Entry) -> dict[str, Any]:
    found = entry.registration
    return {
        "label": entry.label,
        "state": entry.state,
        "hangs": entry.outcome is None,
        "filed": None if found is None else found.value["filed"],
        "stamped": None if entry.stamp is None else entry.stamp.text,
        "sha256": None if found is None else found.sha256,
    }


def _list(chain: Ledger) -> str:
    lines = []
    for entry in chain.entries:
        facts = _facts(entry)
        state = "OPEN, no outcome" if facts["hangs"] else facts["state"]
        if entry.registration is None:
            lines.append(f"{entry.label}  cannot be read")
            continue
        if entry.outcome is not None and not entry.outcome_signed:
            state += ", unsigned"
        stamped = f", stamped {facts['stamped']}" if facts["stamped"] else ""
        lines.append(f"{entry.label}  {state}  filed {facts['filed']}{stamped}")
    lines += [
        f"{finding.severity}: {printable(finding.file)}: {printable(finding.message, 400)}"
        for finding in chain.all_findings
    ]
    checked = "not verified, no --key given"
    if chain.trust.keys:
        checked = "verified" if not chain.all_findings else "checked, see above"
    hanging = len(chain.hanging)
    lines.append(
        f"{len(chain.entries)} registration{'' if len(chain.entries) == 1 else 's'}, "
        f"{hanging} open; signatures {checked}"
    )
    if any(entry.stamp for entry in chain.entries) and not chain.trust.roots:
        lines.append("time stamps were compared with their files and not verified: no --root given")
    return "".join(f"{line}\n" for line in lines)


def _verdicts(entry: Entry, outcome: dict[str, Any]) -> str:
    found = entry.registration
    assert found is not None
    claims = {one["id"]: one["claim"] for one in found.value["criteria"]}
    claims |= {one["id"]: one["claim"] for one in found.value["predictions"]}
    lines = [f"{found.label}: adjudicated"]
    for one in (*outcome["criteria"], *outcome["predictions"]):
        value = "" if one.get("quantity") is None else f" ({one['quantity']:g})"
        reason = f": {one['reason']}" if one["reason"] else ""
        lines.append(f"{one['id']:6} {one['verdict']}{value}{reason}  {claims[one['id']]}")
    lines += [f"not run: {cell}" for cell in outcome["run"]["missing"]]
    return "".join(f"{printable(line, 400)}\n" for line in lines)
