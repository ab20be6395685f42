"""What every HTTP service of ours needs below its routes: TLS whose certificate is renewed while it
runs, connections that are bounded in number and time, an access log.

The extender and the webhook are such services. `limits` has every time-out.
"""
