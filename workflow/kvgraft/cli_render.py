"""How the results of the commands read on a terminal: values in, text out.

Digests are cut to 16 digits where nobody has to copy them; --json has them whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kvaudit.errors import printable
from kvgraft.cli_common import fields

if TYPE_CHECKING:
    from kvgraft.asking import Reply
    from kvgraft.cli_blocks import Captured, Check, Grafted
    from kvgraft.cli_doctor import Determinism, Report
    from kvgraft.cli_inspect import Inspected
    from kvgraft.cli_library import Deposited, Shown
    from kvgraft.cli_store import Entry
    from kvgraft.library_archive import Exported
    from kvgraft.library_care import Checked as LibraryReport
    from kvgraft.library_entry import Entry as Deposit
    from kvgraft.library_entry import Router
    from kvgraft.library_folder import Unreadable
    from kvgraft.library_import import Report as IntakeReport
    from kvgraft.store import FsckReport, GcReport


def captured(found: Captured) -> str:
    """The answer of `kvgraft capture`."""
    header, profile = found.header, found.profile
    return fields(
        [
            ("block", found.id),
            ("tokens", f"{header.tokens.n:,} of {profile.context['n_ctx']:,}"),
            ("bytes", f"{header.state.bytes:,}"),
            ("model", printable(header.model.name)),
            ("profile", f"{profile.settings.name} {profile.digest[:16]}"),
            ("store", printable(found.store)),
        ]
    )


def grafted(found: Grafted) -> str:
    """The answer of `kvgraft graft`, and what a check of it gave."""
    lines = [printable(line, 1 + 12 * len(line)) for line in found.answer.split("\n")]
    return "\n".join(lines) + "\n" + ("\n" + _check(found.check) if found.check else "")


def _check(check: Check) -> str:
    verdict = f"equal: all {check.rows} rows of logits have the same bytes"
    if not check.equal:
        verdict = (
            f"DIFFERENT: {check.equal_rows} of {check.rows} rows of logits have the same bytes, "
            f"the first that has not is at position {check.first_different}"
        )
    return fields(
        [
            ("check", verdict),
            ("graft", check.graft_sha256),
            ("fresh", f"{check.fresh_sha256}  ({check.fresh_tokens} tokens, new process)"),
        ]
    )


def remarks(found: Grafted) -> list[str]:
    """What a reader of an answer should know, one line each."""
    out = []
    if not found.exact:
        out.append("inexact: the block is of another profile, or came from such a graft itself")
    if found.stopped == "context-full":
        out.append("the answer ends because the context is full")
    if found.check and not found.check.equal and not found.split_invariant:
        out.append(
            "under this profile bits depend on batches; the block may have been read in other ones"
        )
    return out


def inspected(found: Inspected) -> str:
    """The answer of `kvgraft inspect`."""
    header, layout = found.header, found.layout
    n_chunks = len(header.state.chunks)
    good = f"all {n_chunks} have their SHA-256 and BLAKE3"
    rows: list[tuple[str, object]] = [
        ("block", header.id),
        ("file", f"{printable(found.path)}  ({layout['file_bytes']:,} bytes)"),
        ("format", header.format),
        ("model", f"{header.model.name} ({header.model.architecture}) {header.model.sha256[:16]}"),
        ("profile", f"{_profile_name(header.provenance)} {header.profile[:16]}"),
        ("engine", header.engine[:16]),
        ("tokens", f"{header.tokens.n:,} from position {header.start}"),
        ("parent", header.parent or "none"),
        ("state", f"{header.state.bytes:,} bytes from byte {layout['state_offset']}"),
        *(("", _cache(index, cache)) for index, cache in enumerate(layout["caches"])),
        ("chunks", _damage(found.damaged_chunks, n_chunks) if found.damaged_chunks else good),
        ("exact", "yes" if header.provenance.get("exact") is True else "no"),
        ("source", printable(header.provenance.get("source", "not recorded"))),
        ("text", _beginning(found)),
    ]
    return fields(rows)


def _beginning(found: Inspected) -> str:
    if found.text is None:
        return f"not shown: {found.note}"
    more = " …" if found.header.tokens.n > found.text_tokens else ""
    return printable(found.text, 1000) + more


def _profile_name(provenance: Any) -> str:
    try:
        return printable(provenance["profile"]["settings"]["name"])
    except (KeyError, TypeError):
        return "unnamed"


def _cache(index: int, cache: dict[str, Any]) -> str:
    if "unreadable" in cache:
        return f"not readable: {cache['unreadable']}"
    held = "empty"
    if cache["cells"]:
        first, last = cache["positions"]
        held = f"{cache['cells']:,} cells, positions {first} … {last}, {cache['layers']} layers"
    types = f"K {'/'.join(cache['types']['k'])}, V {'/'.join(cache['types']['v'])}"
    return f"cache {index}: {held}, {types}{' transposed' if cache['v_transposed'] else ''}"


def _damage(chunks: tuple[int, ...], n_chunks: int) -> str:
    shown = ", ".join(map(str, chunks[:8])) + (", …" if len(chunks) > 8 else "")
    return f"DAMAGED: {len(chunks)} of {n_chunks}, index {shown}"


def listing(found: Iterable[Entry]) -> Iterable[str]:
    """Lines of `kvgraft store ls`."""
    for entry in found:
        if entry.header is None:
            yield f"{entry.id}  {printable(entry.reason)}\n"
        else:
            facts = entry.header
            size = f"{facts.tokens.n:>8,} tokens  {facts.state.bytes:>14,} bytes"
            yield f"{entry.id}  {size}  {facts.model.name}\n"


def checked(found: FsckReport) -> str:
    """The answer of `kvgraft store fsck`."""
    lines = [f"damaged  {name}: {printable(reason)}" for name, reason in found.damaged]
    lines += [f"stray    {printable(name)}" for name in found.strays]
    lines += [f"orphan   {block_id}: its parent is not in the store" for block_id in found.orphans]
    summary = f"{found.ok} sound, {len(found.damaged)} damaged, {len(found.strays)} strays, "
    summary += f"{len(found.orphans)} orphans, {found.temporaries} temporaries"
    return "".join(f"{line}\n" for line in [*lines, summary])


def collected(found: GcReport) -> str:
    """The answer of `kvgraft store gc`."""
    lines = [f"removed  {block_id}" for block_id in found.blocks]
    summary = f"{len(found.blocks)} blocks and {found.temporaries} temporaries removed, "
    return "".join(f"{line}\n" for line in [*lines, f"{summary}{found.bytes_freed:,} bytes freed"])


def deposited(found: Deposited) -> str:
    """The answer of `kvgraft deposit`."""
    entry, example = found.entry, found.entry.demonstration
    made = " (new)" if found.is_new_library else ""
    rows: list[tuple[str, object]] = [
        ("entry", entry.id),
        ("answer", f"{entry.answer}, printed by its program"),
        ("block", entry.block_id),
        ("library", f"{printable(found.library)}{made}"),
    ]
    if example:
        rows[2:2] = [("example", f"{example.answer}, printed by its program")]
        rows[4:4] = [("child", f"{example.block_id}, of the example")]
    return fields(rows)


def replied(found: Reply) -> str:
    """The answer of `kvgraft ask`."""
    tokens = f"{found.decoded_tokens} decoded, {found.prompt_tokens} read, "
    exact = "-"  # no block was restored
    if found.cached_tokens:
        exact = "yes" if found.exact else "no"
    rows: list[tuple[str, object]] = [
        ("answer", "none" if found.answer is None else found.answer),
        ("route", found.route),
        ("entry", found.entry_id or "none"),
        ("reason", printable(found.reason, 1000)),
        ("tokens", f"{tokens}{found.cached_tokens} restored"),
        ("exact", exact),
    ]
    rows += _several("warning", [printable(one, 1000) for one in found.warnings])
    if found.program is not None:
        rows += _several("program", _lines(found.program))
    return fields(rows)


def deposits(found: Iterable[Deposit | Unreadable]) -> str:
    """The answer of `kvgraft library ls`."""
    return "".join(f"{entry.id}  {_deposit(entry)}\n" for entry in found)


def _deposit(entry: Deposit | Unreadable) -> str:
    from kvgraft.library_folder import Unreadable

    if isinstance(entry, Unreadable):
        return f"UNREADABLE  {printable(entry.error, 1000)}"
    return f"{entry.answer:>6}  {printable(entry.statement, 80)}"


def library_checked(found: LibraryReport) -> str:
    """The answer of `kvgraft library fsck`."""
    lines = [f"UNREADABLE  {name}: {printable(why, 1000)}" for name, why in found.unreadable]
    lines += [f"missing  {block_id} of entry {entry_id}" for entry_id, block_id in found.missing]
    lines += [f"stray    {printable(name)}" for name in found.strays]
    lines += [f"unnamed  {block_id}: no entry names this block" for block_id in found.unnamed]
    summary = f"{found.entries} entries sound, {len(found.unreadable)} unreadable, "
    summary += f"{len(found.missing)} blocks missing, {len(found.strays)} strays, "
    summary += f"{len(found.unnamed)} blocks unnamed, {found.temporaries} temporaries"
    return "".join(f"{line}\n" for line in [*lines, summary]) + "blocks: " + checked(found.blocks)


def calibrated(found: Router) -> str:
    """The answer of `kvgraft library calibrate`."""
    return fields(
        [
            ("threshold", found.threshold),
            ("alpha", found.alpha),
            ("questions", found.n_calibration),
            ("entries", found.entries or "none"),
        ]
    )


def shown(found: Shown) -> str:
    """The answer of `kvgraft library show`."""
    entry, source, won = found.entry, found.entry.source, found.entry.admission
    origin = f"supplied by {printable(source.author)}"
    if source.kind == "solver":
        origin = f"{printable(source.solver)} with {printable(source.model)}, "
        origin += f"attempt {source.attempt}, {source.tokens} tokens"
    admission: object = "not measured"
    if won:
        admission = f"{won.with_block} of {won.instances} instances with the block, {won.alone} "
        admission += f"alone, {won.needed} more needed: {'admitted' if won.admitted else 'REFUSED'}"
    rows = [
        ("entry", entry.id),
        *_several("statement", _lines(entry.statement)),
        *_several("program", _lines(entry.program)),
        ("answer", entry.answer),
        ("source", origin),
        ("output", f"sha256 {entry.verification.output_sha256}"),
        ("admission", admission),
        ("block", f"{entry.block_id}{'' if found.has_block else '  MISSING'}"),
    ]
    if entry.template:
        rows += _several("template", _lines(entry.template.program))
        shape = ", ".join(str(part) for part in entry.template.shape)
        rows.append(("numbers", printable(shape, 1000)))
    if example := entry.demonstration:
        rows += [
            *_several("example", _lines(example.statement)),
            *_several("program", _lines(example.program)),
            ("answer", example.answer),
            ("output", f"sha256 {example.verification.output_sha256}"),
            ("child", f"{example.block_id}{'' if found.has_child else '  MISSING'}"),
        ]
    return fields(rows)


def _lines(text: str) -> list[str]:
    return [printable(line, 1000) for line in text.rstrip("\n").split("\n")]


def exported(found: Exported) -> str:
    """The answer of `kvgraft library export`."""
    return fields(
        [
            ("archive", printable(found.path, 4000)),
            ("holds", f"{found.entries} entries, {found.blocks} blocks, {found.bytes:,} bytes"),
            ("sha256", found.sha256),
        ]
    )


def taken_in(found: IntakeReport) -> str:
    """The answer of `kvgraft library import`."""
    lines = [f"taken    {entry_id}" for entry_id in found.taken]
    lines += [f"present  {entry_id}" for entry_id in found.present]
    lines += [f"REFUSED  {name}: {printable(reason, 1000)}" for name, reason in found.refused]
    summary = f"{len(found.taken)} taken, {len(found.present)} present, "
    summary += f"{len(found.refused)} refused; blocks of {found.compared} entries computed again "
    summary += f"and equal, of {len(found.recomputed)} replaced"
    return "".join(f"{line}\n" for line in [*lines, summary])


def examined(found: Report) -> str:
    """The answer of `kvgraft doctor`."""
    there = [f"{name} {version}" for name, version in found.packages.items() if version]
    rows: list[tuple[str, object]] = [("python", found.python)]
    rows += _several("packages", [", ".join(there[i : i + 5]) for i in range(0, len(there), 5)])
    if found.engine:
        versions = [found.engine[key] for key in ("binding", "llama", "ggml", "ggml_commit")]
        rows.append(("engine", "{}; llama {}, ggml {} ({})".format(*versions)))
        libraries = found.engine["libraries"].items()
        rows += _several("libraries", [f"{digest[:16]}  {name}" for name, digest in libraries])
        isa = f"{found.machine['architecture']}: {', '.join(found.machine['features'])}"
        rows.append(("isa", isa))
        devices = [f"{one['name']}: {one['description']}" for one in found.machine["devices"]]
        rows += _several("devices", devices)
    else:
        rows.append(("engine", "none"))
    variables = [f"{name}={printable(value)}" for name, value in found.environment.items()]
    rows += _several("variables", variables)
    rows += _several(
        "models",
        [f"{m.name}: {'not installed' if m.missing else 'installed'}" for m in found.models],
    )
    if (portable := found.portable) is not None:
        said = f"yes: all {portable.operators} operators give their golden bytes"
        if not portable.holds:
            said = f"NO: {len(portable.differences)} of {portable.operators} operators do not give "
            said += f"their golden bytes, the first is {portable.differences[0]}"
        rows.append(("portable", said))
    rows += _determinism(found.determinism)
    for problem in found.problems:
        rows.append(("wrong" if problem.wrong else "missing", printable(problem.what)))
        if problem.next_step:
            rows.append(("", f"next: {printable(problem.next_step)}"))
    return fields(rows)


def _determinism(found: Determinism | None) -> list[tuple[str, object]]:
    if found is None:
        return [("repeatable", "not looked at")]
    verdict = "yes" if found.holds else "NO"
    where = f"{found.model}, {found.tokens} tokens, split-invariant {found.profile[:16]}"
    rows: list[tuple[str, object]] = [("repeatable", f"{verdict}: {where}")]
    rows += [
        ("", f"{case.name}: {'equal bytes' if case.equal else 'DIFFERENT, ' + case.where}")
        for case in found.cases
    ]
    return rows


def _several(label: str, values: Iterable[object]) -> list[tuple[str, object]]:
    """One row each; only the first has the label."""
    return [(label if index == 0 else "", value) for index, value in enumerate(values)]
