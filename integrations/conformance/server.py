"""A server that offers what the conformance suite of MCP asks for: `python server.py PORT`."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from typing import Any

import mcp_types as types
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel, Field

PIXEL = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c63fccff0bf1e0005820281"
        "9b8f1d5b0000000049454e44ae426082"
    )
).decode()
SILENCE = base64.b64encode(b"RIFF$\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0@\x1f\0\0@\x1f\0\0\1\0\x08\0data\0\0\0\0").decode()
STEPS = ("Tool execution started", "Tool processing data", "Tool execution completed")

server = MCPServer("conformance")


def picture() -> types.ImageContent:
    """Return one pixel."""
    return types.ImageContent(type="image", data=PIXEL, mime_type="image/png")


def embedded(uri: str, kind: str, text: str) -> types.EmbeddedResource:
    """Return a text as a resource."""
    resource = types.TextResourceContents(uri=uri, mime_type=kind, text=text)
    return types.EmbeddedResource(type="resource", resource=resource)


def words(text: str) -> types.TextContent:
    """Return a text."""
    return types.TextContent(type="text", text=text)


@server.tool(structured_output=False)
def test_simple_text() -> str:
    """Answers with a text."""
    return "This is a simple text response for testing."


@server.tool(structured_output=False)
def test_image_content() -> list[Any]:
    """Answers with an image."""
    return [picture()]


@server.tool(structured_output=False)
def test_audio_content() -> list[Any]:
    """Answers with a sound."""
    return [types.AudioContent(type="audio", data=SILENCE, mime_type="audio/wav")]


@server.tool(structured_output=False)
def test_embedded_resource() -> list[Any]:
    """Answers with a resource."""
    return [embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")]


@server.tool(structured_output=False)
def test_multiple_content_types() -> list[Any]:
    """Answers with a text, an image and a resource."""
    data = embedded("test://mixed-content-resource", "application/json", '{"test": "data", "value": 123}')
    return [words("Multiple content types test:"), picture(), data]


@server.tool(structured_output=False)
async def test_tool_with_logging(context: Context) -> str:
    """Says what it does while it does it."""
    for step in STEPS:
        await context.info(step)
        await asyncio.sleep(0.05)
    return "Tool with logging executed successfully"


@server.tool(structured_output=False)
async def test_tool_with_progress(context: Context) -> str:
    """Says how far it is."""
    for done in (0, 50, 100):
        await context.report_progress(done, 100, f"{done} of 100")
        await asyncio.sleep(0.05)
    return "Tool with progress executed successfully"


@server.tool(structured_output=False)
def test_error_handling() -> str:
    """Fails."""
    raise RuntimeError("This tool intentionally returns an error for testing")


@server.tool(structured_output=False)
async def test_sampling(prompt: str, context: Context) -> str:
    """Asks the client's model."""
    asked = types.SamplingMessage(role="user", content=words(prompt))
    answer = await context.session.create_message(messages=[asked], max_tokens=100)
    return f"LLM response: {answer.content.text}"


class UserResponse(BaseModel):
    """What a user is asked for."""

    response: str = Field(description="User's response")


@server.tool(structured_output=False)
async def test_elicitation(message: str, context: Context) -> str:
    """Asks the user."""
    return told("User response", await context.elicit(message, UserResponse))


class Defaults(BaseModel):
    """One default of each primitive type."""

    name: str = Field("John Doe", description="User name")
    age: int = Field(30, description="User age")
    score: float = Field(95.5, description="User score")
    status: str = Field(
        "active", description="User status", json_schema_extra={"enum": ["active", "inactive", "pending"]}
    )
    verified: bool = Field(True, description="Verification status")


@server.tool(structured_output=False)
async def test_elicitation_sep1034_defaults(context: Context) -> str:
    """Asks the user for what has defaults."""
    return told("Elicitation completed", await context.elicit("Please review", Defaults))


def titled(word: str, options: dict[str, str]) -> dict[str, Any]:
    """Return options with titles."""
    return {word: [{"const": value, "title": title} for value, title in options.items()]}


class Choices(BaseModel):
    """One choice of each form."""

    untitledSingle: str = Field(json_schema_extra={"enum": ["option1", "option2", "option3"]})
    titledSingle: str = Field(json_schema_extra=titled("oneOf", {"value1": "First", "value2": "Second"}))
    legacyEnum: str = Field(json_schema_extra={"enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]})
    untitledMulti: list[str] = Field(json_schema_extra={"items": {"type": "string", "enum": ["option1", "option2"]}})
    titledMulti: list[str] = Field(
        json_schema_extra={"items": titled("anyOf", {"value1": "First", "value2": "Second"})}
    )


@server.tool(structured_output=False)
async def test_elicitation_sep1330_enums(context: Context) -> str:
    """Asks the user to choose."""
    return told("Elicitation completed", await context.elicit("Please choose", Choices))


def told(what: str, answer: Any) -> str:
    """Return what a user has said."""
    content = answer.data.model_dump_json() if answer.action == "accept" else "{}"
    return f"{what}: action={answer.action}, content={content}"


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """An image."""
    return base64.b64decode(PIXEL)


@server.resource("test://template/{id}/data", mime_type="application/json")
def template(id: str) -> str:
    """A text with a parameter."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@server.resource("test://watched-resource", mime_type="text/plain")
def watched() -> str:
    """A text that can be watched."""
    return "Watched resource content"


@server.prompt()
def test_simple_prompt() -> str:
    """A prompt."""
    return "This is a simple prompt for testing."


@server.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.prompt()
def test_prompt_with_embedded_resource(resourceUri: str) -> list[Any]:
    """A prompt with a resource."""
    resource = embedded(resourceUri, "text/plain", "Embedded resource content for testing.")
    return [{"role": "user", "content": resource}, {"role": "user", "content": words("Please process it.")}]


@server.prompt()
def test_prompt_with_image() -> list[Any]:
    """A prompt with an image."""
    return [{"role": "user", "content": picture()}, {"role": "user", "content": words("Please analyze it.")}]


@server.completion()
async def completion(ref: Any, argument: Any, context: Any) -> types.Completion:
    """Complete nothing."""
    return types.Completion(values=[], total=0, has_more=False)


async def done(context: Any, params: Any) -> types.EmptyResult:
    """Take note of what the newer protocol has no requests for any more."""
    return types.EmptyResult()


for method, kind in (
    ("logging/setLevel", types.SetLevelRequestParams),
    ("resources/subscribe", types.SubscribeRequestParams),
    ("resources/unsubscribe", types.UnsubscribeRequestParams),
):
    server._lowlevel_server.add_request_handler(method, kind, done)

if __name__ == "__main__":
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
