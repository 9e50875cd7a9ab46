"""The protocols that the server speaks: Chat Completions, Completions and Responses of OpenAI, and Messages of Anthropic. Requests are
pydantic models, each of which becomes one of Chat Completions; writers make replies of events, whole or as a stream. Nothing runs here.
"""
