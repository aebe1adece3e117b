"""Which notes a conversation may read and write.

A person's notes are private: they are read and written only in a direct chat with that person. Everything
else, also a chat of unknown kind, gets the notes of the room, the agent and the account alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from channels.message import Address
from gateway.accounts.account_reader import AccountReader
from gateway.store.conversations.conversations import Conversation
from gateway.store.conversations.memories import Memory, MemoryFilter, MemoryScope, MemorySubject


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryView:
    """The notes that a conversation may read: those of a few subjects of its account."""

    account: str
    person: str | None
    room: str
    agent: str

    @property
    def subjects(self) -> tuple[MemorySubject, ...]:
        """Return the subjects, the private one first."""
        shared = (
            MemorySubject(scope=MemoryScope.ROOM, key=self.room),
            MemorySubject(scope=MemoryScope.AGENT, key=self.agent),
            MemorySubject(scope=MemoryScope.ACCOUNT, key=self.account),
        )
        if self.person is None:
            return shared
        return (MemorySubject(scope=MemoryScope.PERSON, key=self.person), *shared)

    @property
    def filter(self) -> MemoryFilter:
        """Return which notes these are."""
        return MemoryFilter(account=self.account, subjects=self.subjects)

    @property
    def default_scope(self) -> MemoryScope:
        """Return the scope of a note for which none is named: the narrowest one."""
        return self.subjects[0].scope

    def subject_of(self, scope: MemoryScope) -> MemorySubject | None:
        """Return the subject of a scope, None if the conversation has none."""
        return next((one for one in self.subjects if one.scope is scope), None)

    def shows(self, memory: Memory) -> bool:
        """Return whether a note may be read here."""
        return memory.account == self.account and memory.belongs_to in self.subjects


async def view_of(reader: AccountReader, conversation: Conversation, asker: str) -> MemoryView:
    """Return the view of a conversation in which a person asks something."""
    return MemoryView(
        account=conversation.account,
        person=await _person(reader, conversation, asker) if conversation.direct and asker else None,
        room=room_key(conversation),
        agent=conversation.agent,
    )


def room_key(conversation: Conversation) -> str:
    """Return the key of a chat room; a conversation outside chats is a room of its own."""
    if conversation.address is None:
        return conversation.id
    return chat_room_key(Address.decode(conversation.address))


def chat_room_key(address: Address) -> str:
    """Return the key of the chat room of an address."""
    return f"{address.channel}:{address.room}"


async def _person(reader: AccountReader, conversation: Conversation, asker: str) -> str | None:
    """Return the key of a person, the same on all platforms that the person has joined."""
    platform = await reader.get_platform(conversation)
    return None if platform is None else await reader.get_subject(platform, asker)
