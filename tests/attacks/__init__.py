"""Malicious cores, one lie each. What is attacked is signed by a trusted key unless the test says otherwise."""
