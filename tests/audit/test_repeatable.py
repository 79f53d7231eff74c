"""Output is held against a record only where nothing but the program's text decides it."""

from __future__ import annotations

import pytest

from kvaudit.flywheel.repeatable import is_repeatable
from kvaudit.problems.family import instance
from kvaudit.problems.registry import FAMILIES


def test_every_program_of_the_contest_set_is_held_to_its_bytes() -> None:
    programs = [one.program(instance(one, "repeatable").params) for one in FAMILIES]
    sets = [program for program in programs if not is_repeatable(program)]
    assert len(sets) <= 3
    assert all("set(" in program or "{" in program for program in sets)


@pytest.mark.parametrize(
    "program",
    [
        "print(2 + 2)",
        "from math import comb\nprint(comb(9, 3))",
        "import itertools, math\nfor i in range(9):\n    print(i, end=' ')\nprint(7)",
        "print({1: 2})\nprint([i for i in range(3)])",
        "raise ValueError(7)",
        "print(1 // 0)",
        "import math\nprint(math.gcd(4, 6), math.isqrt(10 ** 20), 2 ** 9 % 7, 7 // 2)",
        "from math import lcm\nfrom functools import reduce\nprint(reduce(lcm, range(1, 9)))",
        "def f(n):\n    return n + 1\nprint(f(1), *map(f, [3]), sorted([2, 1], key=f))",
        "from fractions import Fraction as F\nx = F(1, 3) + F(2, 5)\nprint(x.numerator, f'{x}')",
        "print(' '.join(str(i) for i in range(3)), sum(map(int, '123')))",
        "import string\nfrom string import digits\nprint(string.ascii_lowercase, digits)",
        "print('no end",
        "",
    ],
)
def test_a_program_of_numbers_and_pure_modules_prints_the_same_anywhere(program: str) -> None:
    assert is_repeatable(program)


@pytest.mark.parametrize(
    "program",
    [
        "import time\nprint(time.time())",
        "import datetime\nprint(datetime.date.today())\nprint(7)",
        "from random import random\nprint(random())",
        "from . import math",
        "print({'a', 'b'})",
        "print({c for c in 'word'})",
        "print(set('word'))",
        "print(hash('word'))",
        "print(object())",
        "print(id(7))",
        "print((7).__class__.__mro__)",
        "print(__file__)",
        "print(lambda: 7)",
        "try:\n    int('x')\nexcept ValueError as error:\n    print(error)",
        "print(open('/etc/hostname').read())",
        "class A: pass\nprint(A())",
        "exec('print(7)')",
        "print(sum([0.1] * 10))",  # 1.0 from Python 3.12 on
        "print(sum([1 / 10] * 10))",
        "x = 1\nx /= 3\nprint(x)",
        "print(10 ** -1 + 10 ** -1)",
        "print(float(7))",
        "print(sum(map(float, ['0.1'] * 10)))",
        "from operator import truediv\nprint(truediv(1, 3))",
        "import operator\nprint(operator.truediv(1, 3))",
        "print(1j)",
        "import math\nprint(math.sin(1))",
        "import math as m\nprint(m.sqrt(2))",
        "from math import sin\nprint(sin(1))",
        "from math import *\nprint(sin(1))",
        "import statistics\nprint(statistics.mean([1, 2]))",
        "import decimal\nprint(decimal)",
        "import decimal\nprint([decimal])",
        "import functools\nprint(f'{functools.cache}')",
        "from functools import cache\nprint(cache)",
        "def f():\n    pass\nprint(f)",
        "def f():\n    pass\ng = [f]\nprint(g)",
        "print(i for i in range(3))",
        "print(map(int, '12'))",
        "print(str(zip([1], [2])))",
        "print([].append)",
    ],
)
def test_what_a_day_a_machine_or_a_seed_decides_is_not_held_against_a_record(program: str) -> None:
    assert not is_repeatable(program)
