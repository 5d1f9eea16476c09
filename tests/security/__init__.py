"""What an attacker, a mistake or an accident must not achieve: at least one test for each practice of SECURITY.md."""
