// Links between pages. The module and the texts of the target are loaded when the pointer or the focus is on the link.
import { useLinkProps, useNavigate } from "@tanstack/react-router";
import { useCallback, type AnchorHTMLAttributes, type ReactNode } from "react";

export interface LinkProps extends Omit<AnchorHTMLAttributes<HTMLAnchorElement>, "href"> {
  to: string;
  params?: Record<string, string>;
  search?: Record<string, unknown>;
  /** Marks the link as current on its page, or also on pages below its path. */
  current?: "exact" | "below";
  children?: ReactNode;
}

export function Link({ to, params, search, current, children, ...rest }: LinkProps) {
  const untyped = useLinkProps as (options: Record<string, unknown>) => AnchorHTMLAttributes<HTMLAnchorElement>;
  const {
    "aria-current": isCurrent,
    className: _className,
    ...props
  } = untyped({
    to,
    params,
    search,
    preload: "intent",
    activeOptions: { exact: current !== "below", includeSearch: false },
  });
  return (
    <a {...rest} {...props} className={rest.className} aria-current={current === undefined ? undefined : isCurrent}>
      {children}
    </a>
  );
}

/** Goes to a path, such as `/events/eb-1?tab=matches`. */
export function useGo(): (path: string) => void {
  const navigate = useNavigate();
  return useCallback(
    (path: string) => {
      const url = new URL(path, location.origin);
      void navigate({ to: url.pathname, search: Object.fromEntries(url.searchParams) } as never);
    },
    [navigate],
  );
}
