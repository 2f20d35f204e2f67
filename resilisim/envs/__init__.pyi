from .checks import check_conversation_env as check_conversation_env
from .conversation import ConversationEnv as ConversationEnv
from .reply import public_info as public_info
from .session import Session as Session
from .settings import EnvironmentSettings as EnvironmentSettings

__all__: list[str]
