"""The controller's process: HTTP, WebSocket, the ledger, and what operators see."""
