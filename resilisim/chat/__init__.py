"""Language models behind one protocol: what is asked, what is answered, and who answers."""

from resilisim.chat.middleware import (
    CachingChatModel,
    ChatModelSettings,
    Price,
    PriceTable,
    RateLimitedChatModel,
    ResponseCache,
    RetryPolicy,
)
from resilisim.chat.models import COMPONENT_ROLES, RoleModels, make_chat_model, model_identity
from resilisim.chat.openai import OpenAIChatModel
from resilisim.chat.scripted import FileScriptedChatModel, ScriptedChatModel, ScriptedReply, ScriptError
from resilisim.chat.types import (
    ChatMessage,
    ChatModel,
    ChatReply,
    ChatRequest,
    ContextOverflowError,
    EndpointError,
    RequestRefusedError,
    TokenUsage,
    ToolCall,
)

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
