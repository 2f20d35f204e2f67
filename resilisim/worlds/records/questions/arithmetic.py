"""Word problems: everything that they need stands in the question, and has to be calculated without a slip."""

from __future__ import annotations

from resilisim.seeding import Draws
from resilisim.worlds.records.contents import GeneratedData
from resilisim.worlds.records.fictional_tables import fictional_words, words_of
from resilisim.worlds.records.questions.template import Question, calculated, python, template

_GOODS = words_of(
    "apples bolts bricks candles cards crates eggs jars lamps nails pencils plates ribbons stamps tiles towels"
)
_TWO_DECIMALS = "Round to two decimals."


def _names(draws: Draws, count: int) -> list[str]:
    return fictional_words(draws, count, 1)


@template("arithmetic", "easy")
def packed(data: GeneratedData, draws: Draws) -> Question | None:
    """Multiply, multiply, subtract."""
    [name], goods = _names(draws, 1), draws.choice(_GOODS)
    boxes, each, broken = draws.between(12, 95), draws.between(13, 88), draws.between(11, 99)
    text = (
        f"{name} receives {boxes} boxes of {each} {goods} each and finds {broken} of the {goods} broken. How many "
        f"{goods} are not broken?"
    )
    return Question(text, boxes * each - broken, (calculated(f"{boxes} * {each} - {broken}"),), "${answer.result}")


@template("arithmetic", "easy")
def wages(data: GeneratedData, draws: Draws) -> Question | None:
    """Add two products."""
    [name] = _names(draws, 1)
    hours, extra, pay = draws.between(30, 45), draws.between(3, 17), draws.between(1_150, 4_990) / 100
    text = (
        f"{name} is paid {pay:.2f} an hour and one and a half times as much for extra hours. How much does {name} "
        f"earn in a week of {hours} ordinary and {extra} extra hours? {_TWO_DECIMALS}"
    )
    formula = f"{pay:.2f} * {hours} + 1.5 * {pay:.2f} * {extra}"
    return Question(text, pay * hours + 1.5 * pay * extra, (calculated(formula),), "${answer.result}", digits=2)


@template("arithmetic", "easy")
def journey(data: GeneratedData, draws: Draws) -> Question | None:
    """Divide a sum by a sum."""
    [name] = _names(draws, 1)
    first, second = (draws.between(40, 480), draws.between(35, 260)), (draws.between(40, 480), draws.between(35, 260))
    text = (
        f"{name} drives {first[0]} kilometres in {first[1]} minutes and then {second[0]} kilometres in {second[1]} "
        f"minutes. What is the mean speed of the whole journey in kilometres per hour? {_TWO_DECIMALS}"
    )
    formula = f"60 * ({first[0]} + {second[0]}) / ({first[1]} + {second[1]})"
    answer = 60 * (first[0] + second[0]) / (first[1] + second[1])
    return Question(text, answer, (calculated(formula),), "${answer.result}", digits=2)


@template("arithmetic", "easy")
def discount(data: GeneratedData, draws: Draws) -> Question | None:
    """Take a share off, and add another."""
    [name], goods = _names(draws, 1), draws.choice(_GOODS)
    count, price = draws.between(12, 240), draws.between(105, 1_990) / 100
    off, tax = draws.between(3, 35), draws.between(5, 24)
    text = (
        f"{name} orders {count} {goods} at {price:.2f} each, gets {off} percent off, and then has to pay {tax} "
        f"percent tax on what is left. How much is the bill? {_TWO_DECIMALS}"
    )
    formula = f"{count} * {price:.2f} * (1 - {off} / 100) * (1 + {tax} / 100)"
    answer = count * price * (1 - off / 100) * (1 + tax / 100)
    return Question(text, answer, (calculated(formula),), "${answer.result}", digits=2)


@template("arithmetic", "easy")
def shared(data: GeneratedData, draws: Draws) -> Question | None:
    """Divide in proportion."""
    names = _names(draws, 3)
    parts = [draws.between(2, 19) for _ in names]
    each = draws.between(11, 160)
    total = each * sum(parts)
    text = (
        f"{names[0]}, {names[1]} and {names[2]} share a prize of {total} in the ratio {parts[0]} to {parts[1]} to "
        f"{parts[2]}. How much more than {names[1]} does {names[0]} get? A negative number means less."
    )
    formula = f"{total} / ({' + '.join(map(str, parts))}) * ({parts[0]} - {parts[1]})"
    return Question(text, each * (parts[0] - parts[1]), (calculated(formula),), "${answer.result}")


@template("arithmetic", "easy")
def garden(data: GeneratedData, draws: Draws) -> Question | None:
    """Subtract areas."""
    [name] = _names(draws, 1)
    length, width, path = draws.between(14, 90), draws.between(12, 70), draws.between(1, 4)
    text = (
        f"The garden of {name} is {length} metres long and {width} metres wide, all of it surrounded on the inside "
        f"by a path of {path} metres. How many square metres are left within the path?"
    )
    formula = f"({length} - 2 * {path}) * ({width} - 2 * {path})"
    answer = (length - 2 * path) * (width - 2 * path)
    return Question(text, answer, (calculated(formula),), "${answer.result}")


@template("arithmetic", "hard")
def savings(data: GeneratedData, draws: Draws) -> Question | None:
    """Repeat a step many times."""
    [name] = _names(draws, 1)
    start, monthly = draws.between(200, 4_000), draws.between(20, 400)
    rate, months = draws.between(2, 12) / 10, draws.between(9, 60)
    text = (
        f"{name} has {start} in an account. At the end of each month {rate} percent interest on what is in the "
        f"account is added, and then {name} pays in {monthly}. How much is in the account after {months} months, if "
        f"nothing is rounded on the way? {_TWO_DECIMALS}"
    )
    amount = float(start)
    for _ in range(months):
        amount = amount * (1 + rate / 100) + monthly
    program = "for _ in range(months):\n    amount = amount * (1 + rate / 100) + monthly\nprint(amount)"
    calls = (python(program, amount=start, rate=rate, monthly=monthly, months=months),)
    checked = (*calls, calculated("round(${answer.output}, 2)", "rounded"))
    return Question(text, amount, checked, "${rounded.result}", digits=2)


@template("arithmetic", "hard")
def meeting_trains(data: GeneratedData, draws: Draws) -> Question | None:
    """Use the result of one formula in the next."""
    names = _names(draws, 2)
    apart, slow, fast, ahead = (
        draws.between(300, 1_400),
        draws.between(50, 90),
        draws.between(91, 190),
        draws.between(6, 90),
    )
    text = (
        f"{names[0]} and {names[1]} are {apart} kilometres apart. A train leaves {names[0]} for {names[1]} at {slow} "
        f"kilometres per hour; {ahead} minutes later another leaves {names[1]} for {names[0]} at {fast} kilometres "
        f"per hour. How many kilometres from {names[0]} do they meet? {_TWO_DECIMALS}"
    )
    calls = (
        calculated(f"{apart} - {slow} * {ahead} / 60", "left"),
        calculated(f"${{left.result}} / ({slow} + {fast})", "hours"),
        calculated(f"{slow} * {ahead} / 60 + {slow} * ${{hours.result}}"),
    )
    head = slow * ahead / 60
    answer = head + slow * (apart - head) / (slow + fast)
    return Question(text, answer, calls, "${answer.result}", digits=2)


@template("arithmetic", "hard")
def tank(data: GeneratedData, draws: Draws) -> Question | None:
    """Combine rates."""
    [name] = _names(draws, 1)
    litres, one, two, leak = (draws.between(*bounds) for bounds in ((900, 9_900), (11, 60), (11, 60), (2, 9)))
    start = draws.between(5, 45)
    text = (
        f"The tank of {name} holds {litres} litres and is empty. A pump fills in {one} litres a minute, but {leak} "
        f"litres a minute leak out from the beginning. After {start} minutes a second pump of {two} litres a minute "
        f"joins the first. After how many minutes in all is the tank full? {_TWO_DECIMALS}"
    )
    if start * (one - leak) >= litres:
        return None
    calls = (
        calculated(f"{start} * ({one} - {leak})", "before"),
        calculated(f"({litres} - ${{before.result}}) / ({one} + {two} - {leak})", "after"),
        calculated(f"{start} + ${{after.result}}"),
    )
    answer = start + (litres - start * (one - leak)) / (one + two - leak)
    return Question(text, answer, calls, "${answer.result}", digits=2)


@template("arithmetic", "hard")
def orders(data: GeneratedData, draws: Draws) -> Question | None:
    """Sum over a list with a rule."""
    [name], goods = _names(draws, 1), draws.choice(_GOODS)
    prices = [draws.between(120, 2_400) / 100 for _ in range(draws.between(6, 11))]
    counts = [draws.between(2, 60) for _ in prices]
    limit, off = draws.between(20, 40), draws.between(4, 25)
    listed = ", ".join(f"{count} at {price:.2f}" for count, price in zip(counts, prices, strict=True))
    text = (
        f"{name} sells {goods} and has these orders: {listed}. Whoever orders more than {limit} {goods} at once gets "
        f"{off} percent off that order. What do all orders come to? {_TWO_DECIMALS}"
    )
    program = "print(sum(n * p * (1 - off / 100 if n > limit else 1) for n, p in zip(counts, prices)))"
    rounded = calculated("round(${answer.output}, 2)", "rounded")
    calls = (python(program, counts=counts, prices=prices, limit=limit, off=off), rounded)
    answer = sum(n * p * (1 - off / 100 if n > limit else 1) for n, p in zip(counts, prices, strict=True))
    return Question(text, answer, calls, "${rounded.result}", digits=2)


@template("arithmetic", "hard")
def remainders(data: GeneratedData, draws: Draws) -> Question | None:
    """Search for a number."""
    [name], goods = _names(draws, 1), draws.choice(_GOODS)
    sizes = draws.shuffled((7, 9, 11, 13, 16, 17))[:3]
    hidden = draws.between(200, 1_400)
    left = [hidden % size for size in sizes]
    answer = next(
        n for n in range(100, 10_000) if all(n % size == rest for size, rest in zip(sizes, left, strict=True))
    )
    text = (
        f"{name} has at least 100 {goods}. Packed by {sizes[0]}, {left[0]} are left over; by {sizes[1]}, {left[1]}; by "
        f"{sizes[2]}, {left[2]}. What is the smallest number of {goods} that {name} can have?"
    )
    program = "n = 100\nwhile [n % size for size in sizes] != left:\n    n = n + 1\nprint(n)"
    calls = (python(program, sizes=sizes, left=left), calculated("${answer.output} + 0", "checked"))
    return Question(text, answer, calls, "${checked.result}")


@template("arithmetic", "hard")
def mixture(data: GeneratedData, draws: Draws) -> Question | None:
    """Solve for what is asked."""
    [name] = _names(draws, 1)
    litres, weak, strong = draws.between(20, 400), draws.between(3, 20), draws.between(45, 90)
    wanted = draws.between(weak + 5, strong - 8)
    price = draws.between(110, 990) / 100
    text = (
        f"{name} has {litres} litres of a solution of {weak} percent and wants to make it {wanted} percent by adding "
        f"a solution of {strong} percent, which costs {price:.2f} a litre. How much does what has to be added cost? "
        f"{_TWO_DECIMALS}"
    )
    calls = (
        calculated(f"{litres} * ({wanted} - {weak}) / ({strong} - {wanted})", "litres"),
        calculated(f"${{litres.result}} * {price:.2f}"),
    )
    answer = litres * (wanted - weak) / (strong - wanted) * price
    return Question(text, answer, calls, "${answer.result}", digits=2)
