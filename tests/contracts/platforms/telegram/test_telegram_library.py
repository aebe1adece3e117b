"""The simulator of Telegram speaks the Bot API that python-telegram-bot, a client of other authors, knows."""

from __future__ import annotations

from telegram import Bot, InputFile, MessageEntity, ReplyParameters
from telegram.constants import ChatAction, ReactionEmoji

from channels.telegram.simulator import Simulator, simulate

CHAT = 7


def _bot(platform: Simulator) -> Bot:
    return Bot(platform.token, base_url=f"{platform.url}/bot", base_file_url=f"{platform.url}/file/bot")


async def test_the_library_reads_what_the_simulator_says() -> None:
    """The bot's account and a user's message are parsed, and the update is confirmed by its successor."""
    async with simulate() as platform, _bot(platform) as bot:
        assert bot.username
        await platform.say(CHAT, "hello")
        (update,) = await bot.get_updates(timeout=5)
        assert update.message is not None
        assert (update.message.chat.id, update.message.text) == (CHAT, "hello")
        assert await bot.get_updates(offset=update.update_id + 1, timeout=0) == ()
        assert await bot.set_message_reaction(CHAT, update.message.id, ReactionEmoji.THUMBS_UP)


async def test_the_library_sends_to_the_simulator() -> None:
    """Texts with entities, an edit, an action and a file arrive, and their results are parsed."""
    async with simulate() as platform, _bot(platform) as bot:
        await platform.say(CHAT, "hello")
        bold = [MessageEntity(type=MessageEntity.BOLD, offset=0, length=5)]
        sent = await bot.send_message(CHAT, "a bold text", entities=bold)
        assert sent.text == "a bold text"
        edited = await bot.edit_message_text("another text", CHAT, sent.id)
        assert not isinstance(edited, bool)
        assert (edited.id, edited.text) == (sent.id, "another text")
        assert await bot.send_chat_action(CHAT, ChatAction.TYPING)
        reply = ReplyParameters(sent.id)
        file = await bot.send_document(CHAT, InputFile(b"content", "a.txt"), reply_parameters=reply)
        assert file.document is not None
        assert (file.document.file_name, file.document.file_size) == ("a.txt", 7)
        assert [post.id for post in platform.messages(CHAT)] == [sent.id, file.id]
