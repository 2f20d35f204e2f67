"""Published sets: the episodes that everybody plays to be compared, and the check of a run that was played on one.

A set fixes benchmark, tool library, tasks, seeds, prompts and all options of the environment, the salt of the draws
included, or its hash where only the owner of the set is to know it. The check believes nothing but the messages that
a run's agent sent: each episode is judged again from its record (`run.rescoring`), so every success has to follow from
the draws, and then its messages are sent to the environment once more, so the texts have to be the environment's own.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

from annotated_types import Ge, Le, MinLen

from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import InvalidInputError, StoreError, count_of, nearest_name
from resilisim.evaluation.episode.record import FailureRecord, differences
from resilisim.evaluation.run.chain import Of, chain_problems, num_sittings
from resilisim.evaluation.run.plan import PlannedEpisodes, hash_tasks
from resilisim.evaluation.run.rescoring import batches
from resilisim.evaluation.run.store import (
    BEGUN,
    EPISODES_NAME,
    FAILURES_NAME,
    read_failures,
    read_manifest,
    read_own_records,
    refuse_explored,
)
from resilisim.evaluation.submitted_episode import (
    CLAIMS,
    OWN_CLAIMS,
    CheckedEpisode,
    CheckSetup,
    EpisodeChecker,
    Refusal,
    RefusalKind,
)
from resilisim.evaluation.table.comparing import MAY_DIFFER, argument_name
from resilisim.inputs import read_json, read_text, validated
from resilisim.policies.registry import PRIVILEGED_POLICIES, split_options
from resilisim.processes import answers_in_order
from resilisim.provenance import canonical_json, encode_json
from resilisim.run_folder import whole_lines, write_file_atomically
from resilisim.tasks import Task
from resilisim.tasks.benchmark import find_task
from resilisim.tool_library import ToolLibrary, default_library

OPEN_SET: Final = "open-v2"
SETS: Final = "sets"  # folder of the sets that come with the package

EPISODES_PER_JOB: Final = 20
SHOWN_OF_A_KIND: Final = 5  # refusals that are told one by one
DRAWS_LEVEL: Final = 1e-6  # rarer luck than this is taken for knowledge of the draws

Sha256 = Annotated[str, MinLen(64)]


@dataclass(frozen=True, slots=True)
class PublishedSet:
    """What everybody plays to be compared: a run that fits it in everything can stand in one table with all others.

    Raises:
        InvalidInputError: The environment is none, or draws nothing from its salt.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    schema: Literal["resilisim-set-1"]
    name: Annotated[str, MinLen(1)]
    benchmark: dict[str, Any]  # version, SHA-256 and revision of the texts, as manifests have them
    library: Sha256  # content hash of the tool library
    tasks: Annotated[list[str], MinLen(1)]  # their ids, in order
    tasks_sha256: Sha256  # of the tasks themselves, as manifests have it
    seeds: Annotated[list[Annotated[int, Ge(0), Le(2**63 - 1)]], MinLen(1)]
    prompts: Annotated[list[str], MinLen(1)]
    environment: dict[str, Any]  # options of `EnvironmentSettings`; without its salt where that is private
    salt_sha256: Sha256

    def __post_init__(self) -> None:
        """Refuse an environment that is none, and draws that anybody could say anything about."""
        salt = self.settings().salt
        if not self.is_private and (not salt or salt_hash(salt) != self.salt_sha256):
            raise InvalidInputError(
                f"the salt of set {self.name!r:.60} is {salt!r:.60} with SHA-256 {salt_hash(salt)}: expected one that "
                f"is not empty, with {self.salt_sha256!r:.70}"
            )

    @property
    def is_private(self) -> bool:
        """Whether only the owner knows the salt."""
        return "salt" not in self.environment

    @property
    def num_episodes(self) -> int:
        """Episodes of each policy."""
        return len(self.tasks) * len(self.seeds) * len(self.prompts)

    def settings(self, salt: str | None = None) -> EnvironmentSettings:
        """Return the options of the environment, with a private salt if one is given."""
        return EnvironmentSettings().with_options(**self.environment | ({} if salt is None else {"salt": salt}))

    def to_json(self) -> bytes:
        """Return the file that `load_set` reads."""
        return encode_json(asdict(self), indent=2) + b"\n"


def salt_hash(salt: str) -> str:
    """Return the SHA-256 of a salt, in hex, by which a private set names it."""
    return hashlib.sha256(salt.encode("utf-8", "surrogatepass")).hexdigest()


def load_set(name: str | Path) -> PublishedSet:
    """Return the set of that name that comes with the package, or the one in a file.

    Raises:
        InvalidInputError: There is neither, or the file is not a set.
    """
    folder = resources.files("resilisim.evaluation").joinpath(SETS)
    shipped = {file.name.removesuffix(".json"): file for file in folder.iterdir()}
    if str(name) in shipped:
        text, where = shipped[str(name)].read_text(encoding="utf-8"), f"set {name}"
    elif nearest_name(str(name), shipped) and not Path(name).exists():
        raise InvalidInputError(f"unknown set {str(name)!r}: did you mean {nearest_name(str(name), shipped)!r}?")
    else:
        expected = f"one of {', '.join(sorted(shipped))}, or the path of a JSON file"
        text, where = read_text(Path(name), "set", expected), str(name)
    return validated(PublishedSet, read_json(text, where), where)


def define_set(directory: Path | str, name: str, *, private: bool = False) -> PublishedSet:
    """Return the set that a finished run was played on.

    Args:
        directory: The run's folder.
        name: What the set is called, with its version ("open-v2").
        private: Whether the set names only the hash of the salt.

    Raises:
        StoreError: It is not a folder of results.
        InvalidInputError: Tasks of the run have not been played, its draws have no salt, or it was explored.
    """
    manifest = read_manifest(directory)
    arguments = manifest["arguments"]
    refuse_explored(directory, arguments, "a set is of episodes, each with draws of its own")
    environment = EnvironmentSettings(**arguments["environment"]).to_mapping()
    count = arguments["tasks"]["count"]
    per_task = max(arguments["num_episodes"] // count, 1)
    ids = {record["index"] // per_task: record["instance_id"] for record in read_own_records(directory, manifest)}
    if len(ids) < count:
        raise InvalidInputError(f"{directory} holds episodes of {len(ids)} of its {count} tasks: expected all of them")
    salt = environment.pop("salt") if private else environment["salt"]
    if not salt:
        raise InvalidInputError(f"the salt of {directory} is {salt!r}: expected one that is not empty")
    return PublishedSet(
        schema="resilisim-set-1",
        name=name,
        benchmark=arguments["benchmark"],
        library=arguments["library"],
        tasks=[ids[number] for number in range(count)],
        tasks_sha256=arguments["tasks"]["sha256"],
        seeds=list(arguments["seeds"]),
        prompts=list(arguments["prompts"]),
        environment=environment,
        salt_sha256=salt_hash(salt),
    )


def write_set(path: Path | str, published: PublishedSet) -> None:
    """Write the file of a set; StoreError if that cannot be done."""
    write_file_atomically(Path(path), published.to_json())


@dataclass(frozen=True, slots=True)
class Luck:
    """What the draws gave one policy under one prompt type.

    Attributes:
        total: Sum of its luck, in episodes; its mean is 0 for whoever does not know the draws.
        variance: Its predictable variance.
        bound: How often an agent without that knowledge has as much luck, at most (Freedman 1975).
    """

    policy: str
    prompt_type: str
    num_episodes: int
    total: float
    variance: float

    @property
    def bound(self) -> float:
        """Freedman's inequality for a martingale whose steps are at most 1."""
        if self.total <= 0.0:
            return 1.0
        return math.exp(-(self.total**2) / (2.0 * (self.variance + self.total / 3.0)))

    def to_mapping(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {**asdict(self), "bound": self.bound}


@dataclass(frozen=True, slots=True)
class SubmissionCheck:
    """What the check of a run against a set has found.

    Attributes:
        refusals: The first of each kind.
        num_refusals: How many there are of each kind.
        notes: What is no reason to refuse it, and what readers should know.
        claims: What the run says and nobody can check.
        luck: What the draws gave each policy under each prompt type.
    """

    directory: Path
    set_name: str
    policies: tuple[str, ...]
    num_episodes: int
    num_expected: int
    refusals: tuple[Refusal, ...]
    num_refusals: Mapping[str, int]
    notes: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    luck: tuple[Luck, ...] = ()

    @property
    def is_accepted(self) -> bool:
        """Whether nothing was found."""
        return not self.num_refusals

    def to_mapping(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "directory": str(self.directory),
            "set": self.set_name,
            "accepted": self.is_accepted,
            "policies": list(self.policies),
            "num_episodes": self.num_episodes,
            "num_expected": self.num_expected,
            "num_refusals": dict(self.num_refusals),
            "refusals": [asdict(refusal) for refusal in self.refusals],
            "notes": list(self.notes),
            "claims": list(self.claims),
            "luck": [each.to_mapping() for each in self.luck],
        }


def check_submission(
    directory: Path | str,
    published: PublishedSet | str | Path = OPEN_SET,
    *,
    salt: str | None = None,
    tasks: Sequence[Task] | None = None,
    library: ToolLibrary | None = None,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> SubmissionCheck:
    """Check that a run was played on a published set, and that everything in its records follows from the set.

    Args:
        directory: The run's folder; it is only read, and nothing that it names is imported.
        published: The set, its name, or its file.
        salt: The salt of a private set.
        tasks: The tasks of the set, if they are not tasks of the benchmark.
        library: The set's tool library; the default one if omitted.
        workers: Number of processes.
        progress: Called with the number of episodes done since the last call.

    Raises:
        StoreError: It is not a folder of results, or cannot be read.
        InvalidInputError: The set cannot be read, its salt, tasks or library are not those that were given, or it is
            private and no salt was given.
    """
    published = published if isinstance(published, PublishedSet) else load_set(published)
    library = library if library is not None else default_library()
    salt = _known_salt(published, salt)
    known_tasks = _tasks_of(published, tasks, library)
    folder, manifest = Path(directory), read_manifest(directory)
    arguments = manifest["arguments"]
    validated(_Asked, arguments, f"manifest of {folder}", error=StoreError)
    findings = _Found(folder, published, tuple(arguments["policy_names"]))
    for refusal in _refused_arguments(arguments, published, salt):
        findings.refuse(refusal)
    if findings.counts:
        return findings.result(("episodes were not looked at, as the run is another one",))
    plan = PlannedEpisodes(known_tasks, len(findings.policies), arguments["prompts"], arguments["seeds"])
    setup = CheckSetup(
        folder / EPISODES_NAME,
        plan,
        arguments,
        manifest["hash"],
        None if library == default_library() else library.to_json(),
    )
    for refusal in _privileged_names(arguments):
        findings.refuse(refusal)
    for failure in read_failures(folder):
        findings.broken[failure["index"]].append(failure)
    for answers in answers_in_order(EpisodeChecker, setup, batches(_lines_in(setup.path), EPISODES_PER_JOB), workers):
        for answer in answers:
            findings.add(answer)
        if progress is not None:
            progress(len(answers))
    findings.look_at_the_whole(plan)
    findings.look_at_tries()
    findings.look_at_the_chain(manifest["hash"])
    return findings.result()


def _lines_in(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield all lines of a file, also those that stand twice, which are refused here."""
    return whole_lines(path) if path.exists() else iter(())


def _known_salt(published: PublishedSet, salt: str | None) -> str:
    if salt is None:
        if published.is_private:
            raise InvalidInputError(
                f"set {published.name} is private, it names only the hash of its salt: its owner checks with "
                "--salt-file"
            )
        return published.settings().salt
    if salt_hash(salt) != published.salt_sha256:
        raise InvalidInputError(
            f"the salt has the SHA-256 {salt_hash(salt)}: expected that of set {published.name}, "
            f"{published.salt_sha256}"
        )
    return salt


def _tasks_of(published: PublishedSet, tasks: Sequence[Task] | None, library: ToolLibrary) -> list[Task]:
    if library.content_hash != published.library:
        raise InvalidInputError(
            f"the tool library has the hash {library.content_hash}: expected that of set {published.name}, "
            f"{published.library} (--library)"
        )
    if tasks is None:
        listed = [find_task(name) for name in published.tasks]
    else:
        by_id = {task.instance_id: task for task in tasks}
        lost = next((name for name in published.tasks if name not in by_id), None)
        if lost is not None:
            raise InvalidInputError(f"task {lost} of set {published.name} is not among the tasks: expected all of them")
        listed = [by_id[name] for name in published.tasks]
    if hash_tasks(listed) != published.tasks_sha256:
        raise InvalidInputError(
            f"the tasks of set {published.name} have the SHA-256 {hash_tasks(listed)} here: expected "
            f"{published.tasks_sha256}"
        )
    return listed


def _refused_arguments(arguments: Mapping[str, Any], published: PublishedSet, salt: str) -> Iterator[Refusal]:
    """Yield where what a run was asked for is not what a set fixes."""
    if arguments.get("explored"):
        yield Refusal("run", "it was explored, expected episodes that were played on the draws of the set")
        return
    try:
        settings = EnvironmentSettings().with_options(**arguments["environment"])
    except InvalidInputError as error:
        yield Refusal("run", f"the options of its environment are not known here: {error}")
        return
    here, there = _fixed(arguments, settings), _fixed(_arguments_of(published), published.settings(salt))
    for place, value, expected in differences(here, there):
        if published.is_private and place == "environment.salt":
            value, expected = (salt_hash(str(each)) for each in (value, expected))
        name = argument_name(place)
        yield Refusal("run", f"{name} is {_shown(value)}, expected {_shown(expected)}")
    names = arguments["policy_names"]
    if not names or len(set(names)) < len(names):
        yield Refusal("run", f"policies are {_shown(names)}, expected at least one, each once")
    elif len(arguments["policies"]) != len(names):
        yield Refusal("run", f"policies are {_shown(arguments['policies'])}, expected one for each of {_shown(names)}")
    elif arguments["num_episodes"] != len(names) * published.num_episodes:
        expected = len(names) * published.num_episodes
        yield Refusal("run", f"it plans {_shown(arguments['num_episodes'])} episodes, expected {expected}")
    for name in sorted(arguments.keys() - MAY_DIFFER - here.keys()):
        yield Refusal("run", f"it has the argument {name!r:.60}, expected none of that name")


def _fixed(arguments: Mapping[str, Any], settings: EnvironmentSettings) -> dict[str, Any]:
    """Return what a set fixes of a run; the order of prompts and seeds decides no episode."""
    return {
        "benchmark": arguments.get("benchmark"),
        "library": arguments.get("library"),
        "environment": {"search": "semantic", **settings.to_mapping()},
        "tasks": arguments.get("tasks"),
        **{name: sorted(arguments.get(name) or (), key=str) for name in ("prompts", "seeds")},
    }


def _arguments_of(published: PublishedSet) -> dict[str, Any]:
    return {
        "benchmark": published.benchmark,
        "library": published.library,
        "tasks": {"count": len(published.tasks), "sha256": published.tasks_sha256},
        "prompts": published.prompts,
        "seeds": published.seeds,
    }


def _shown(value: object) -> str:
    text = "absent" if value is None else canonical_json(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _privileged_names(arguments: Mapping[str, Any]) -> Iterator[Refusal]:
    """Yield policies that are privileged by what the manifest says, whatever their records say of it."""
    for name, spec in zip(arguments["policy_names"], arguments["policies"], strict=True):
        if split_options(spec)[0] in PRIVILEGED_POLICIES or spec in arguments.get("checkpoints", {}):
            yield Refusal("privileged", f"policy {name} is {spec}, which sees the state, expected one that does not")


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the arguments of every run hold; what they say of it is looked at one by one."""

    policies: list[str]
    policy_names: list[str]
    prompts: list[str]
    seeds: list[int]
    environment: dict[str, Any]
    num_episodes: int


@dataclass(slots=True)
class _Found:
    """Collects what a check finds."""

    folder: Path
    published: PublishedSet
    policies: tuple[str, ...]
    counts: Counter[str] = field(default_factory=Counter)
    shown: list[Refusal] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    broken: dict[int, list[FailureRecord]] = field(default_factory=lambda: defaultdict(list))
    groups: dict[tuple[str, str], list[Luck]] = field(default_factory=lambda: defaultdict(list))
    num_unbound: Counter[str] = field(default_factory=Counter)
    sent: dict[int, tuple[str | None, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def refuse(self, refusal: Refusal) -> None:
        self.counts[refusal.kind] += 1
        if self.counts[refusal.kind] <= SHOWN_OF_A_KIND:
            self.shown.append(refusal)

    def add(self, answer: CheckedEpisode) -> None:
        """Add what was found in an episode; one that stands there twice counts once."""
        if answer.index in self.seen:
            self.refuse(Refusal("doubled", "it stands there twice, expected it once", answer.index))
            return
        self.seen.add(answer.index)
        for refusal in answer.refusals:
            self.refuse(refusal)
        self.num_unbound[answer.policy] += not answer.is_bound
        if answer.index in self.broken:
            self.sent[answer.index] = answer.sent
        group = (answer.policy, answer.prompt_type)
        self.groups[group].append(Luck(*group, 1, answer.luck, answer.variance))

    def look_at_the_whole(self, plan: PlannedEpisodes) -> None:
        """Refuse what only all episodes together show."""
        failures = {index: broken[-1]["reason"] for index, broken in self.broken.items()}
        for index in (index for index in range(len(plan)) if index not in self.seen):
            planned = plan[index]
            reason = f"; it broke: {failures[index]:.100}" if index in failures else ""
            what = f"{planned.task.instance_id}, seed {planned.seed}, {planned.prompt}"
            text = f"it is missing ({what}, policy {self.policies[planned.policy]}), expected all episodes{reason}"
            self.refuse(Refusal("missing", text, index))
        if "record" in self.counts or "other_episode" in self.counts:
            return
        level = DRAWS_LEVEL / max(len(self.groups), 1)
        for luck in self.luck():
            if luck.bound < level:
                self.refuse(
                    Refusal(
                        "draws",
                        f"policy {luck.policy} under {luck.prompt_type} has the luck {luck.total:+.1f} in "
                        f"{luck.num_episodes} episodes, which an agent that does not know the draws has at most "
                        f"{luck.bound:.1g} of the time, expected {level:.1g} or more",
                    )
                )
        repeated = sorted(index for index in self.seen & failures.keys() if failures[index] != BEGUN)
        if repeated:
            count = count_of(len(repeated), "episode")
            self.notes.append(
                f"{count} broke and {'was' if len(repeated) == 1 else 'were'} played again, "
                f"the first is episode {repeated[0]}: {failures[repeated[0]]:.100}"
            )

    def look_at_tries(self) -> None:
        """Refuse episodes that were handed out twice, or played again in another way than before they broke."""
        for index, broken in self.broken.items():
            handed_out = sum(failure["reason"] == BEGUN for failure in broken)
            if handed_out > 1:
                self.refuse(Refusal("tries_again", f"it was handed out {handed_out} times, expected once", index))
            for failure in broken:
                before = tuple(failure.get("messages", ()))
                if index in self.sent and self.sent[index][: len(before)] != before[: len(self.sent[index])]:
                    text = "it broke, and was played again in another way, expected the same messages"
                    self.refuse(Refusal("tries_again", text, index))
                    break

    def look_at_the_chain(self, run: str) -> None:
        """Refuse lines that are not as they were written; say in how many sittings they were."""
        files: dict[Of, str] = {"episodes": EPISODES_NAME, "failures": FAILURES_NAME}
        for problem in chain_problems(self.folder, run, files):
            self.refuse(Refusal("chain", problem))
        sittings = num_sittings(self.folder)
        if sittings > 1:
            self.notes.append(f"it was played in {sittings} sittings")

    def claims(self) -> tuple[str, ...]:
        """Return what the run says and nobody can check."""
        own = [name for name, number in self.num_unbound.items() if number]
        texts = dict.fromkeys((*CLAIMS.values(), *(OWN_CLAIMS.values() if own else ())))
        return tuple(texts)

    def luck(self) -> tuple[Luck, ...]:
        """Return the luck of each policy under each prompt type."""
        return tuple(
            replace(
                parts[0],
                num_episodes=len(parts),
                total=math.fsum(part.total for part in parts),
                variance=math.fsum(part.variance for part in parts),
            )
            for parts in self.groups.values()
        )

    def result(self, notes: tuple[str, ...] = ()) -> SubmissionCheck:
        """Return everything, sorted by kind, then as it was found."""
        kinds: tuple[str, ...] = get_args(RefusalKind)
        return SubmissionCheck(
            directory=self.folder,
            set_name=self.published.name,
            policies=self.policies,
            num_episodes=len(self.seen),
            num_expected=len(self.policies) * self.published.num_episodes,
            refusals=tuple(sorted(self.shown, key=lambda refusal: kinds.index(refusal.kind))),
            num_refusals={kind: self.counts[kind] for kind in kinds if self.counts[kind]},
            notes=(*self.notes, *notes),
            claims=self.claims() if self.seen else (),
            luck=self.luck(),
        )
