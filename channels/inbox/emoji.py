"""The short names of emoji, which models and people write as well."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SHORT_NAMES = """
👍 +1 thumbsup thumbs_up|👎 -1 thumbsdown thumbs_down|❤️ heart|🔥 fire|👏 clap|🎉 tada hooray|🚀 rocket
👀 eyes|🙏 pray|👌 ok_hand|💯 100|⚡ zap|🏆 trophy|💔 broken_heart|🤔 thinking_face thinking|🤯 exploding_head
😱 scream|😢 cry|😭 sob|🤩 star-struck star_struck|🥰 smiling_face_with_3_hearts|😁 grin|😄 smile laugh
😀 grinning|😂 joy|🤣 rolling_on_the_floor_laughing rofl|🤨 face_with_raised_eyebrow|😐 neutral_face
😕 confused|😴 sleeping|🤓 nerd_face|🙈 see_no_evil|🙉 hear_no_evil|🙊 speak_no_evil|😇 innocent|🤝 handshake
✍️ writing_hand|🤗 hugging_face|🫡 saluting_face|🤷 shrug|😎 sunglasses|😡 rage|😍 heart_eyes|😘 kissing_heart
✅ white_check_mark|✔️ heavy_check_mark|❌ x|⚠️ warning|❓ question|❗ exclamation|👋 wave|💪 muscle|⭐ star
🌟 star2|✨ sparkles|💡 bulb|🐛 bug|🛑 octagonal_sign|⏳ hourglass_flowing_sand|⌛ hourglass|🔒 lock|🔑 key
📝 memo|📌 pushpin|📎 paperclip|🔧 wrench|🔨 hammer|🚧 construction|➕ heavy_plus_sign|🎯 dart
🥳 partying_face|😅 sweat_smile|😊 blush|🙂 slightly_smiling_face|😉 wink|😮 open_mouth|🙌 raised_hands
🫶 heart_hands|🤞 crossed_fingers|👉 point_right|👆 point_up_2|💙 blue_heart|💚 green_heart|💛 yellow_heart
💜 purple_heart|🧡 orange_heart|🖤 black_heart|🤍 white_heart|☕ coffee|🍕 pizza|🎂 birthday|🎁 gift
🌈 rainbow|☀️ sunny|🌙 crescent_moon|🐳 whale|🦄 unicorn_face|👻 ghost|🤖 robot_face|🆗 ok|🆒 cool
🔴 red_circle|🟢 large_green_circle|🟡 large_yellow_circle|🔵 large_blue_circle|🔁 repeat|🔍 mag
📈 chart_with_upwards_trend|📉 chart_with_downwards_trend|💬 speech_balloon|📣 mega|🔔 bell|🗑️ wastebasket
🙋 raising_hand|🤦 face_palm|😬 grimacing|😞 disappointed|😔 pensive|🥲 smiling_face_with_tear|😤 triumph
🫠 melting_face|💀 skull|💩 hankey poop|🍌 banana|🍓 strawberry|🎃 jack_o_lantern|🎄 christmas_tree
🤪 zany_face
"""
SHORT_NAMES: Mapping[str, tuple[str, ...]] = {
    emoji: tuple(names)
    for emoji, *names in (entry.split() for entry in re.split(r"[|\n]", _SHORT_NAMES) if entry)
}
"""The short names of emoji; the first one is Slack's."""

ALIASES: Mapping[str, str] = {name: emoji for emoji, names in SHORT_NAMES.items() for name in names}
"""The emoji by all of their short names."""


def emoji_named(names: str) -> dict[str, str]:
    """Return a platform's names of the emoji that it has, by emoji."""
    return {ALIASES[name]: name for name in names.split()}
