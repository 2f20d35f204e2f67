"""Language models behind one protocol: what is asked, what is answered, and who answers."""

from resilisim.chat.cache import CachingChatModel, ResponseCache
from resilisim.chat.errors import ContextOverflowError, EndpointError, RequestRefusedError
from resilisim.chat.openai_model import OpenAIChatModel
from resilisim.chat.prices import Price, PriceTable
from resilisim.chat.rate_limit import RateLimitedChatModel
from resilisim.chat.registry import ChatModelSettings, make_chat_model, model_identity
from resilisim.chat.retrying import RetryPolicy
from resilisim.chat.roles import COMPONENT_ROLES, RoleModels
from resilisim.chat.script_file import FileScriptedChatModel
from resilisim.chat.scripted import ScriptedChatModel, ScriptedReply, ScriptError
from resilisim.chat.types import ChatMessage, ChatModel, ChatReply, ChatRequest, TokenUsage, ToolCall

__all__ = [
    "COMPONENT_ROLES",
    "CachingChatModel",
    "ChatMessage",
    "ChatModel",
    "ChatModelSettings",
    "ChatReply",
    "ChatRequest",
    "ContextOverflowError",
    "EndpointError",
    "FileScriptedChatModel",
    "OpenAIChatModel",
    "Price",
    "PriceTable",
    "RateLimitedChatModel",
    "RequestRefusedError",
    "ResponseCache",
    "RetryPolicy",
    "RoleModels",
    "ScriptError",
    "ScriptedChatModel",
    "ScriptedReply",
    "TokenUsage",
    "ToolCall",
    "make_chat_model",
    "model_identity",
]
