proto: ## Generate the Python stubs of the contract
	.venv/bin/python tools/generate_stubs.py
