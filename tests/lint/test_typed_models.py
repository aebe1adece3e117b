"""What people write is read with models for which a boolean is no number."""

from __future__ import annotations

import ast

from source_trees import PACKAGES, sources

NOT_WRITTEN_BY_PEOPLE = {
    "channels/receiving/payload_model.py": "what platforms send",
    "egress/typed_model.py": "the base itself",
    "gateway/tools/hooks/answer.py": "questions to hooks, and answers without numbers",
    "gateway/web/compat/a2a/requests.py": "a protocol of others, whose clients are read with tolerance",
    "gateway/web/compat/mcp.py": "a protocol of others, whose clients are read with tolerance",
    "gateway/web/compat/openai_messages.py": "a protocol of others, whose clients are read with tolerance",
    "gateway/web/http/problems.py": "answers of the gateway",
    "gateway/web/http/route.py": "answers of the gateway",
    "gateway/web/stream/frames.py": "frames of clients, whose types are strict",
}


def test_models_of_settings_records_and_requests_are_typed() -> None:
    """They extend `egress.typed_model.TypedModel`, which refuses `true` where a number belongs."""
    used = {
        source.name
        for source in sources(*PACKAGES)
        if not {"simulator", "testing"} & set(source.parts)
        for node in source.nodes(ast.ClassDef)
        if any(isinstance(base, ast.Name) and base.id == "BaseModel" for base in node.bases)
    }
    assert used == set(NOT_WRITTEN_BY_PEOPLE)
