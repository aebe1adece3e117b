// What each platform needs to be connected; all other settings have defaults.

const secret = (name, label) => ({ name, label, kind: "password", required: true });

export const KINDS = {
  telegram: {
    title: "Telegram",
    hint: "Write to @BotFather in Telegram, send /newbot, and paste the token that it gives you.",
    settings: [secret("token", "Bot token")],
  },
  slack: {
    title: "Slack",
    hint: "At api.slack.com/apps create an app from the manifest below, generate an app-level token with connections:write, and install the app.",
    manifest: "setup/slack-manifest.yaml",
    settings: [secret("bot_token", "Bot token (xoxb-…)"), secret("app_token", "App-level token (xapp-…)")],
  },
  discord: {
    title: "Discord",
    hint: "At discord.com/developers create an application, add a bot, allow the message content intent, and copy the bot's token.",
    settings: [secret("token", "Bot token")],
  },
  github: {
    title: "GitHub",
    hint: "Register a GitHub App with read and write access to issues and pull requests, and create a private key for it.",
    settings: [
      { name: "app_id", label: "App id", required: true },
      { name: "private_key", label: "Private key (PEM)", kind: "area", required: true },
      { name: "mode", label: "How events arrive", kind: "select", options: [["polling", "polling"], ["webhook", "webhook"]], value: "polling" },
      { name: "webhook_secret", label: "Webhook secret (for webhooks)", kind: "password" },
    ],
  },
  zalo: {
    title: "Zalo",
    hint: "Create a bot at bot.zaloplatforms.com and paste its token.",
    settings: [secret("token", "Bot token")],
  },
  pancake: {
    title: "Pancake",
    hint: "In Pancake open Settings, Tools, and copy the page's id and access token.",
    settings: [{ name: "page_id", label: "Page id", required: true }, secret("page_access_token", "Page access token")],
  },
};
