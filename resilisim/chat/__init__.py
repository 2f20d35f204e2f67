"""Language models behind one protocol: what is asked, what is answered, and who answers."""

from resilisim.chat.models import make_chat_model
from resilisim.chat.openai import OpenAIChatModel
from resilisim.chat.scripted_models import ScriptedChatModel
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
    "ChatMessage",
    "ChatModel",
    "ChatReply",
    "ChatRequest",
    "ContextOverflowError",
    "EndpointError",
    "OpenAIChatModel",
    "RequestRefusedError",
    "ScriptedChatModel",
    "TokenUsage",
    "ToolCall",
    "make_chat_model",
]
