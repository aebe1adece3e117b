"""Agents of installed packages: functions, pydantic-ai agents and LangGraph graphs."""
