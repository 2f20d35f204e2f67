from .envs.settings import EnvironmentSettings as EnvironmentSettings
from .errors import ResiliSimError as ResiliSimError
from .evaluation import ModelSettings as ModelSettings
from .evaluation import compare_runs as compare_runs
from .evaluation import evaluate as evaluate
from .evaluation import open_session as open_session
from .evaluation import read_results as read_results
from .exploration import explore as explore
from .injection import InjectedFailure as InjectedFailure
from .injection import fit_law as fit_law
from .injection import inject as inject
from .injection import run_program as run_program
from .policies import EpisodeEnded as EpisodeEnded
from .policies import ToolFailed as ToolFailed
from .policies import make_policy as make_policy
from .policies import track_usage as track_usage
from .reporting import write_report as write_report
from .simulator import Law as Law
from .simulator import load_law as load_law
from .simulator.exact import bound as bound
from .tasks import Task as Task
from .tasks.benchmark import benchmark_tasks as benchmark_tasks
from .tool_library import ToolLibrary as ToolLibrary
from .tool_library import default_library as default_library
from .tool_library import load_library as load_library

__version__: str
__all__: list[str]
CONVERSATION_ID: str
WORKFLOW_ID: str

def register_environments() -> None: ...
