"""The command `kvgraft`: look at the machine, capture and graft, look after stores and libraries.

Prints, and turns errors into exit codes. Arguments are in `cli_arguments`, the work is in the other
`cli_*` modules and in the library. Heavy imports happen inside the commands, so that --help is
immediate.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from kvaudit.errors import TypedError, printable
from kvgraft import cli_arguments, cli_common
from kvgraft.cli_common import emit, pretty


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code; `kvgraft.__main__` answers an interrupt.

    Args:
        arguments: without the program's name; those of the process otherwise.
    """
    cli_common.replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        options = cli_arguments.parse(arguments)
        return _COMMANDS[options.command](options)
    except TypedError as error:
        return _fail(error.message(), error.exit_code)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("kvgraft", "kvaudit", ""):
            raise
        return _fail(f"the package {error.name} is not installed (kvgraft doctor says more)", 3)
    except OSError as error:
        where = f"; at {printable(error.filename)}" if error.filename else ""
        return _fail(f"{error.strerror or error}{where}", 2)


def _fail(message: str, code: int) -> int:
    print(f"kvgraft: {printable(message, 4000)}", file=sys.stderr)
    return code


# -- commands -------------------------------------------------------------------------------------


def _doctor(options: argparse.Namespace) -> int:
    from kvgraft import cli_doctor, cli_render

    report = cli_doctor.examine(options.model)
    emit(pretty(report.to_json()) if options.json else cli_render.examined(report))
    return report.exit_code


def _capture(options: argparse.Namespace) -> int:
    from kvgraft import cli_blocks, cli_render

    text = cli_common.read_text(options.text, options.file, what="text")
    found = cli_blocks.capture(
        cli_common.model_pin(options.model),
        text,
        options.store,
        preset=options.profile,
        n_ctx=options.n_ctx,
        n_threads=options.threads,
    )
    emit(pretty(found.to_json()) if options.json else cli_render.captured(found))
    return 0


def _graft(options: argparse.Namespace) -> int:
    from kvgraft import cli_blocks, cli_render

    prompt = cli_common.read_text(options.prompt, None, what="prompt")
    with cli_common.open_block(options.block, options.store) as block:
        found = cli_blocks.graft(
            block,
            cli_common.pin_of_block(block.header, options.model),
            prompt,
            max_tokens=options.max_tokens,
            check=options.check,
            inexact=options.inexact,
        )
    emit(pretty(found.to_json()) if options.json else cli_render.grafted(found))
    for remark in cli_render.remarks(found):
        print(f"kvgraft: {remark}", file=sys.stderr)
    return 1 if found.check and not found.check.equal else 0


def _inspect(options: argparse.Namespace) -> int:
    from kvgraft import cli_inspect, cli_render

    with cli_common.open_block(options.block, options.store) as block:
        found = cli_inspect.inspect(block, options.model)
    emit(pretty(found.to_json()) if options.json else cli_render.inspected(found))
    return 1 if found.damaged_chunks else 0


def _ls(options: argparse.Namespace) -> int:
    from kvgraft import cli_render, cli_store

    found = cli_store.entries(options.store)
    if options.json:
        emit(pretty([entry.to_json() for entry in found]))
    else:
        for line in cli_render.listing(found):
            emit(line)
    return 0


def _put(options: argparse.Namespace) -> int:
    from kvgraft import cli_store

    ids = cli_store.put(options.store, options.files)
    emit(pretty({"ids": ids}) if options.json else "".join(f"{one}\n" for one in ids))
    return 0


def _get(options: argparse.Namespace) -> int:
    from kvgraft import cli_store

    found = cli_store.get(options.store, options.block, options.destination)
    emit(pretty(found.to_json()) if options.json else f"{printable(found.path, 4000)}\n")
    return 0


def _fsck(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from kvgraft import cli_render, cli_store

    found = cli_store.fsck(options.store)
    value = {**asdict(found), "clean": found.clean}
    emit(pretty(value) if options.json else cli_render.checked(found))
    return 0 if found.clean else 1


def _gc(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from kvgraft import cli_render, cli_store

    found = cli_store.gc(options.store, options.keep, options.min_age)
    emit(pretty(asdict(found)) if options.json else cli_render.collected(found))
    return 0


def _pin(options: argparse.Namespace) -> int:
    from kvgraft import cli_store

    found = cli_store.pin(options.file, options.name, options.into, options.licence)
    rows = [("pinned", found.pin.name), ("sha256", found.pin.sha256), ("into", found.into)]
    emit(pretty(found.to_json()) if options.json else cli_common.fields(rows))
    return 0


def _deposit(options: argparse.Namespace) -> int:
    from kvgraft import cli_library, cli_render

    statement = cli_common.read_text(options.statement, None, what="statement")
    program = cli_common.read_text(None, options.program, what="program")
    example = cli_library.example(
        options.example_statement, options.example_program, options.example_answer
    )
    found = cli_library.deposit(
        options.library,
        cli_library.proposal(statement, program, options.answer, options.author, example),
        options.model,
        preset=options.profile,
        n_ctx=options.n_ctx,
    )
    emit(pretty(found.to_json()) if options.json else cli_render.deposited(found))
    return 0


def _ask(options: argparse.Namespace) -> int:
    from kvgraft import cli_library, cli_render

    question = cli_common.read_text(options.question, None, what="question")
    found = cli_library.ask(options.library, question, options.model)
    emit(pretty(found.to_json()) if options.json else cli_render.replied(found))
    return 0


def _library_ls(options: argparse.Namespace) -> int:
    from kvgraft import cli_library, cli_render

    found = cli_library.listing(options.library)
    as_json = [entry.to_json() for entry in found]
    emit(pretty(as_json) if options.json else cli_render.deposits(found))
    return 0


def _library_rm(options: argparse.Namespace) -> int:
    from kvgraft import cli_library

    found = cli_library.remove(options.library, options.entries)
    lines = "".join(f"removed  {entry_id}\n" for entry_id in found)
    emit(pretty({"removed": list(found)}) if options.json else lines)
    return 0


def _library_fsck(options: argparse.Namespace) -> int:
    from kvgraft import cli_library, cli_render

    found = cli_library.fsck(options.library)
    emit(pretty(found.to_json()) if options.json else cli_render.library_checked(found))
    return 0 if found.clean else 1


def _library_gc(options: argparse.Namespace) -> int:
    from kvgraft import cli_library

    found = cli_library.gc(options.library)
    lines = "".join(f"removed  {block_id}\n" for block_id in found)
    lines += f"{len(found)} blocks removed\n"
    emit(pretty({"removed": list(found)}) if options.json else lines)
    return 0


def _library_calibrate(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from kvgraft import cli_library, cli_render

    text = cli_common.read_text(None, options.file, what="foreign questions")
    found = cli_library.calibrate(options.library, text, options.alpha, options.model)
    emit(pretty(asdict(found)) if options.json else cli_render.calibrated(found))
    return 0


def _library_show(options: argparse.Namespace) -> int:
    from kvgraft import cli_library, cli_render

    found = cli_library.show(options.library, options.entry)
    emit(pretty(found.to_json()) if options.json else cli_render.shown(found))
    return 0


def _library_export(options: argparse.Namespace) -> int:
    from kvgraft import cli_library, cli_render

    found = cli_library.export(options.library, options.destination)
    emit(pretty(found.to_json()) if options.json else cli_render.exported(found))
    return 0


def _library_import(options: argparse.Namespace) -> int:
    from kvgraft import cli_library, cli_render

    found = cli_library.take_in(
        options.file, options.library, options.model, with_model=not options.without_model
    )
    emit(pretty(found.to_json()) if options.json else cli_render.taken_in(found))
    return 1 if found.refused else 0


def _recheck(options: argparse.Namespace) -> int:
    from kvgraft import cli_recheck

    return cli_recheck.run(options)


def _selftest(options: argparse.Namespace) -> int:
    from kvgraft import cli_selftest

    return cli_selftest.run(options)


def _problems(options: argparse.Namespace) -> int:
    from kvgraft import cli_problems

    emit(cli_problems.run(options))
    return 0


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "doctor": _doctor,
    "capture": _capture,
    "graft": _graft,
    "inspect": _inspect,
    "pin": _pin,
    "ls": _ls,
    "put": _put,
    "get": _get,
    "fsck": _fsck,
    "gc": _gc,
    "deposit": _deposit,
    "ask": _ask,
    "library ls": _library_ls,
    "library rm": _library_rm,
    "library fsck": _library_fsck,
    "library gc": _library_gc,
    "library calibrate": _library_calibrate,
    "library show": _library_show,
    "library export": _library_export,
    "library import": _library_import,
    "recheck": _recheck,
    "selftest": _selftest,
    "problems ls": _problems,
    "problems show": _problems,
    "problems check": _problems,
}
