"""People and how they are recognised: passwords, sessions, API tokens, OIDC; and the audit log.

    people        rows of people                  sessions      logged-in browsers
    passwords     argon2id, rules                 tokens        API tokens with scopes
    setup_codes   the link of the first start     failures      rate limit of logins
    audit         every change                  oidc          login by an OpenID provider

Functions take the connection of a transaction and the time; nothing here knows HTTP except `oidc`.
"""
