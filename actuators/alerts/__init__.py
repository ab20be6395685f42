"""The notifier: `notifier` keeps the alerts of hot nodes firing in Alertmanager, and
`alertmanager_client` sends them to one of its replicas."""
