// Runs discord-digital-twin, a Discord that others wrote, and carries out one JSON line from stdin at a time.
// node discord_twin.mjs MODULES: MODULES is the node_modules folder that holds discord-digital-twin.
import { createInterface } from 'node:readline'
import { pathToFileURL } from 'node:url'
import { join } from 'node:path'

const { DigitalDiscord } = await import(
  pathToFileURL(join(process.argv[2], 'discord-digital-twin', 'dist', 'index.js')).href
)
const bot = '700700700700700700'
const discord = new DigitalDiscord({
  channels: [{ name: 'general', type: 0 }],
  users: [{ username: 'ada' }],
  botUser: { id: bot, username: 'dovecote' },
  botToken: `${Buffer.from(bot).toString('base64url')}.twin.token`,
})
await discord.start()
const channelId = (await discord.prisma.channel.findMany())[0].id
const userId = await discord.getFirstNonBotUserId()
const here = { channelId, userId }

const acts = {
  say: ({ text }) => discord.simulateUserMessage({ ...here, content: text }),
  command: ({ name, words }) =>
    discord.simulateSlashCommand({
      ...here,
      name,
      guildId: discord.guildId,
      options: words ? [{ name: 'question', type: 3, value: words }] : [],
    }),
  press: ({ message, button }) =>
    discord.simulateButtonClick({ ...here, messageId: message, customId: button, guildId: discord.guildId }),
  messages: async () =>
    (await discord.channel(channelId).getMessages()).map(({ id, content, author, components }) => ({
      id,
      content,
      author: author.id,
      components,
    })),
}

const told = (value) => process.stdout.write(JSON.stringify(value ?? null) + '\n')
told({ api: discord.restUrl, gateway: discord.gatewayUrl, token: discord.botToken, bot, channel: channelId, user: userId })
for await (const line of createInterface({ input: process.stdin })) {
  const { act, ...fields } = JSON.parse(line)
  try {
    told(await acts[act](fields))
  } catch (error) {
    told({ error: String(error) })
  }
}
await discord.stop()
process.exit(0)
